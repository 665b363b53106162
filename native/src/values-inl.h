// Products with values at the vector levels: key by key in order. The last part
// of kernels-inl.h, which includes it.

namespace forerun {
namespace FORERUN_LEVEL {

// Whether the sixteen keys from `key` on are a unit as it lies in the cache.
inline bool whole_unit(const ValueRows& v, int key) {
  if (key + kLanes > v.keys) return false;
  for (int i = 0; i < kLanes; ++i) {
    if (v.units[key + i] != v.units[key] || v.lanes[key + i] != i) return false;
  }
  return true;
}

// Adds the keys [from, to) one by one.
template <class Block>
void add_keys(const ValueRows& v, int from, int to) {
  const auto* units = reinterpret_cast<const typename Block::T* const*>(v.units);
  for (int row = 0; row < v.rows; ++row) {
    for (int n = 0; n < v.d / kLanes; ++n) {
      float* o = v.o + row * v.ldo + n * kLanes;
      F acc[kVecs];
      for (int i = 0; i < kVecs; ++i) acc[i] = Simd::load(o + i * kWidth);
      for (int key = from; key < to; ++key) {
        const F weight = Simd::set1(v.p[row * v.ldp + key]);
        const auto* block = units[key] + static_cast<std::size_t>(n) * kLanes * kLanes;
        for (int i = 0; i < kVecs; ++i) {
          acc[i] = Simd::fmadd(weight, Block::value(block, v.lanes[key], i), acc[i]);
        }
      }
      for (int i = 0; i < kVecs; ++i) Simd::store(o + i * kWidth, acc[i]);
    }
  }
}

// Whole units go through the tiles of a panel, which adds in the same order.
template <class Block>
void value_rows(const ValueRows& v) {
  constexpr int kBlocksAtOnce = 16;
  for (int key = 0; key < v.keys;) {
    if (!whole_unit(v, key)) {
      const int from = key++;
      while (key < v.keys && !whole_unit(v, key)) ++key;
      add_keys<Block>(v, from, key);
      continue;
    }
    const auto* unit = static_cast<const typename Block::T*>(v.units[key]);
    const void* blocks[kBlocksAtOnce];
    for (int first = 0; first < v.d / kLanes; first += kBlocksAtOnce) {
      const int count = std::min(kBlocksAtOnce, v.d / kLanes - first);
      for (int n = 0; n < count; ++n) {
        blocks[n] = unit + static_cast<std::size_t>(first + n) * kLanes * kLanes;
      }
      panel<Block>(
          {v.p + key, v.ldp, v.rows, blocks, count, kLanes, v.o + first * kLanes, v.ldo, true});
    }
    key += kLanes;
  }
}

}  // namespace FORERUN_LEVEL
}  // namespace forerun
