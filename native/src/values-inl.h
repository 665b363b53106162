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

// MR rows and NB blocks of 16 elements of the output from n on, times `units` whole
// units from `key` on. The sums stay in registers from the first to the last.
template <class Block, int MR, int NB>
void add_units(const ValueRows& v, int key, int units, int row, int n) {
  using T = typename Block::T;
  const auto* const* unit = reinterpret_cast<const T* const*>(v.units) + key;
  const int offset = n * kLanes * kLanes;
  F acc[MR][NB * kVecs];
  float* o = v.o + row * v.ldo + n * kLanes;
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
    for (int i = 0; i < NB * kVecs; ++i) acc[m][i] = Simd::load(o + m * v.ldo + i * kWidth);
  }
  const T* blocks[NB];
  Tile<T> t{v.p + row * v.ldp + key, v.ldp, blocks, kLanes, nullptr, 0, 0};
  for (int u = 0; u < units; ++u, unit += kLanes, t.a += kLanes) {
    for (int b = 0; b < NB; ++b) blocks[b] = *unit + offset + b * kLanes * kLanes;
    t.ahead = n + NB < v.d / kLanes ? NB * kLanes * kLanes : 0;
    Block::run(acc, t);
  }
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
    for (int i = 0; i < NB * kVecs; ++i) Simd::store(o + m * v.ldo + i * kWidth, acc[m][i]);
  }
}

// The same for `rows` rows, at most MR, and `blocks` blocks of the output from n on.
template <class Block, int MR = Simd::kMaxRows>
void add_unit_rows(const ValueRows& v, int key, int units, int row, int rows, int n, int blocks) {
  if constexpr (MR > 1) {
    if (rows < MR) {
      add_unit_rows<Block, MR - 1>(v, key, units, row, rows, n, blocks);
      return;
    }
  }
  for_block_tiles<Simd::blocks_for(MR)>(blocks, [&](auto width) {
    add_units<Block, MR, width>(v, key, units, row, n);
    n += width;
  });
}

template <class Block>
void value_rows(const ValueRows& v) {
  for (int key = 0; key < v.keys;) {
    int end = key;
    while (whole_unit(v, end)) end += kLanes;
    if (end > key) {
      // Blocks of the output one after the other, so that the units of one, which all rows
      // take, stay close, and those of the next one are fetched meanwhile.
      const int all = v.d / kLanes, blocks = Simd::blocks_for(std::min(v.rows, Simd::kMaxRows));
      for (int n = 0; n < all; n += blocks) {
        for_row_tiles(v.rows, Simd::kMaxRows, [&](int row, int rows) {
          add_unit_rows<Block>(v, key, (end - key) / kLanes, row, rows, n,
                               std::min(blocks, all - n));
        });
      }
    } else {
      do ++end;
      while (end < v.keys && !whole_unit(v, end));
      add_keys<Block>(v, key, end);
    }
    key = end;
  }
}

}  // namespace FORERUN_LEVEL
}  // namespace forerun
