#include "forerun/kv_cache.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "forerun/require.h"

namespace forerun {
namespace {

// Index of element i of the value of lane `lane`: one block for 16 elements.
std::size_t value_index(bool bf16, int lane, int i) {
  const std::size_t block = static_cast<std::size_t>(i / kLanes) * kLanes * kLanes;
  return block + (bf16 ? bf16_block_index(i % kLanes, lane) : f32_block_index(i % kLanes, lane));
}

// Sixteen elements at once: rounded together, then scattered to their places.
template <class T, class Convert>
void write_token(T* keys, T* values, int lane, int d, const float* key, const float* value,
                 Convert convert) {
  constexpr bool bf16 = sizeof(T) == 2;
  for (int first = 0; first < d; first += kLanes) {
    T k[kLanes], v[kLanes];
    for (int i = 0; i < kLanes; ++i) k[i] = convert(key[first + i]);
    for (int i = 0; i < kLanes; ++i) v[i] = convert(value[first + i]);
    T* to_keys = keys + static_cast<std::size_t>(first) * kLanes;
    T* to_values = values + value_index(bf16, lane, first);
    if constexpr (bf16) {
      pack_row(k, kLanes, lane, to_keys);
      for (int i = 0; i < kLanes; ++i) to_values[2 * i] = v[i];
    } else {
      for (int i = 0; i < kLanes; ++i) to_keys[f32_block_index(lane, i)] = k[i];
      std::copy(v, v + kLanes, to_values);
    }
  }
}

template <class T>
void copy_key(const T* from, int from_lane, T* to, int to_lane, int d) {
  constexpr bool bf16 = sizeof(T) == 2;
  for (int i = 0; i < d; ++i) {
    to[bf16 ? bf16_block_index(to_lane, i) : f32_block_index(to_lane, i)] =
        from[bf16 ? bf16_block_index(from_lane, i) : f32_block_index(from_lane, i)];
  }
}

template <class T>
void copy_value(const T* from, int from_lane, T* to, int to_lane, int d) {
  constexpr bool bf16 = sizeof(T) == 2;
  for (int i = 0; i < d; ++i)
    to[value_index(bf16, to_lane, i)] = from[value_index(bf16, from_lane, i)];
}

}  // namespace

KvCache::KvCache(const KvGeometry& g) : geometry_(g) {
  require_value(g.layers > 0, "layers", g.layers, "at least 1");
  require_value(g.kv_heads > 0, "kv_heads", g.kv_heads, "at least 1");
  require_multiple("head_dim", g.head_dim);
  require_value(g.page_size > 0, "page_size", g.page_size, "at least 1");
  require_value(g.pages > 0, "pages", g.pages, "at least 1");
  require_value(g.pages < std::numeric_limits<int>::max() / g.page_size, "pages", g.pages,
                "fewer, so that slots fit 31 bits");
  const std::size_t bytes =
      static_cast<std::size_t>(g.layers) * g.units() * g.kv_heads * g.unit_bytes();
  to_values_ = static_cast<std::ptrdiff_t>(bytes);
  buffer_ = HugeBuffer(2 * bytes);
}

const void* KvCache::element(int layer, int slot, int head, int i, bool value) const {
  const int lane = slot % kLanes;
  const std::size_t key_index =
      geometry_.bf16 ? bf16_block_index(lane, i) : f32_block_index(lane, i);
  const std::size_t index = value ? value_index(geometry_.bf16, lane, i) : key_index;
  return at(layer, slot / kLanes, head) + (value ? to_values_ : 0) +
         index * geometry_.element_bytes();
}

void KvCache::write(int layer, int slot, int head, const float* key, const float* value) {
  const int unit = slot / kLanes, lane = slot % kLanes, d = geometry_.head_dim;
  unsigned char* keys = at(layer, unit, head);
  unsigned char* values = keys + to_values_;
  if (geometry_.bf16) {
    write_token(reinterpret_cast<std::uint16_t*>(keys), reinterpret_cast<std::uint16_t*>(values),
                lane, d, key, value, [](float x) { return float_to_bf16(x); });
  } else {
    write_token(reinterpret_cast<float*>(keys), reinterpret_cast<float*>(values), lane, d, key,
                value, [](float x) { return x; });
  }
}

void KvCache::move(int from_slot, int to_slot) {
  const int from = from_slot / kLanes, to = to_slot / kLanes, d = geometry_.head_dim;
  const int from_lane = from_slot % kLanes, to_lane = to_slot % kLanes;
  const auto copy = [&](auto type, int layer, int head) {
    using T = decltype(type);
    unsigned char *source = at(layer, from, head), *target = at(layer, to, head);
    copy_key(reinterpret_cast<T*>(source), from_lane, reinterpret_cast<T*>(target), to_lane, d);
    copy_value(reinterpret_cast<T*>(source + to_values_), from_lane,
               reinterpret_cast<T*>(target + to_values_), to_lane, d);
  };
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    for (int head = 0; head < geometry_.kv_heads; ++head) {
      geometry_.bf16 ? copy(std::uint16_t{}, layer, head) : copy(float{}, layer, head);
    }
  }
}

void KvCache::gather_key(int layer, int slot, int head, int lane, void* unit) const {
  const void* from = keys(layer, slot / kLanes, head);
  if (geometry_.bf16) {
    copy_key(static_cast<const std::uint16_t*>(from), slot % kLanes,
             static_cast<std::uint16_t*>(unit), lane, geometry_.head_dim);
  } else {
    copy_key(static_cast<const float*>(from), slot % kLanes, static_cast<float*>(unit), lane,
             geometry_.head_dim);
  }
}

void KvCache::poison(int slot) {
  const std::vector<float> nan(geometry_.head_dim, std::numeric_limits<float>::quiet_NaN());
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    for (int head = 0; head < geometry_.kv_heads; ++head)
      write(layer, slot, head, nan.data(), nan.data());
  }
}

}  // namespace forerun
