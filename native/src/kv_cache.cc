#include "forerun/kv_cache.h"

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

template <class T, class Convert>
void write_token(T* keys, T* values, int lane, int d, const float* key, const float* value,
                 Convert convert) {
  constexpr bool bf16 = sizeof(T) == 2;
  for (int i = 0; i < d; ++i) {
    keys[bf16 ? bf16_block_index(lane, i) : f32_block_index(lane, i)] = convert(key[i]);
    values[value_index(bf16, lane, i)] = convert(value[i]);
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
  keys_ = HugeBuffer(bytes);
  values_ = HugeBuffer(bytes);
}

const void* KvCache::element(int layer, int slot, int head, int i, bool value) const {
  const int lane = slot % kLanes;
  const std::size_t key_index =
      geometry_.bf16 ? bf16_block_index(lane, i) : f32_block_index(lane, i);
  const std::size_t index = value ? value_index(geometry_.bf16, lane, i) : key_index;
  return at(value ? values_ : keys_, layer, slot / kLanes, head) +
         index * geometry_.element_bytes();
}

void KvCache::write(int layer, int slot, int head, const float* key, const float* value) {
  const int unit = slot / kLanes, lane = slot % kLanes, d = geometry_.head_dim;
  void* keys = at(keys_, layer, unit, head);
  void* values = at(values_, layer, unit, head);
  if (geometry_.bf16) {
    write_token(static_cast<std::uint16_t*>(keys), static_cast<std::uint16_t*>(values), lane, d,
                key, value, float_to_bf16);
  } else {
    write_token(static_cast<float*>(keys), static_cast<float*>(values), lane, d, key, value,
                [](float x) { return x; });
  }
}

void KvCache::move(int from_slot, int to_slot) {
  const int from = from_slot / kLanes, to = to_slot / kLanes, d = geometry_.head_dim;
  const int from_lane = from_slot % kLanes, to_lane = to_slot % kLanes;
  const auto copy = [&](auto type, int layer, int head) {
    using T = decltype(type);
    copy_key(reinterpret_cast<T*>(at(keys_, layer, from, head)), from_lane,
             reinterpret_cast<T*>(at(keys_, layer, to, head)), to_lane, d);
    copy_value(reinterpret_cast<T*>(at(values_, layer, from, head)), from_lane,
               reinterpret_cast<T*>(at(values_, layer, to, head)), to_lane, d);
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
