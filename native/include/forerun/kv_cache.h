// The paged KV cache: where keys and values of every layer live.
#pragma once

#include <cstddef>
#include <cstdint>

#include "forerun/memory.h"
#include "forerun/packed.h"

namespace forerun {

struct KvGeometry {
  int layers;
  int kv_heads;
  int head_dim;   // a multiple of 16
  int page_size;  // tokens, at least 1
  int pages;
  bool bf16;  // else float32

  int units() const { return (pages * page_size + kLanes - 1) / kLanes; }
  std::size_t element_bytes() const { return bf16 ? 2 : 4; }
  std::size_t unit_bytes() const { return std::size_t{kLanes} * head_dim * element_bytes(); }
};

// Slot s holds the token of lane s % 16 in unit s / 16; page p holds the slots
// from p * page_size on. Knows nothing of sequences.
class KvCache {
 public:
  // Throws std::invalid_argument for an impossible geometry.
  explicit KvCache(const KvGeometry& geometry);

  const KvGeometry& geometry() const { return geometry_; }
  // Whether 16 consecutive positions from a multiple of 16 share a unit.
  bool aligned() const { return geometry_.page_size % kLanes == 0; }

  const void* keys(int layer, int unit, int head) const { return at(layer, unit, head); }
  const void* values(int layer, int unit, int head) const {
    return at(layer, unit, head) + to_values_;
  }
  // Bytes from a unit's keys to its values.
  std::ptrdiff_t to_values() const { return to_values_; }

  // The slot of storage index `index` of a sequence with these pages.
  int slot(const std::int32_t* pages, int index) const {
    return pages[index / geometry_.page_size] * geometry_.page_size + index % geometry_.page_size;
  }

  // Element i of the key or the value of one token and head.
  const void* element(int layer, int slot, int head, int i, bool value) const;

  // Writes key and value of one head, head_dim floats each, rounded to the
  // precision of the cache.
  void write(int layer, int slot, int head, const float* key, const float* value);
  // Copies a token of all layers and heads.
  void move(int from_slot, int to_slot);
  // Copies the keys of one token to lane `lane` of a unit outside the cache.
  void gather_key(int layer, int slot, int head, int lane, void* unit) const;
  // Fills a slot with NaN in all layers and heads: what is stale must never matter.
  void poison(int slot);

 private:
  unsigned char* at(int layer, int unit, int head) const {
    const std::size_t index =
        (static_cast<std::size_t>(layer) * geometry_.units() + unit) * geometry_.kv_heads + head;
    return buffer_.as<unsigned char>() + index * geometry_.unit_bytes();
  }

  KvGeometry geometry_;
  std::ptrdiff_t to_values_;
  HugeBuffer buffer_;  // all keys, then all values
};

}  // namespace forerun
