// Tiles of rows and blocks whose sums stay in registers. A part of kernels-inl.h,
// which includes it.

namespace forerun {
namespace FORERUN_LEVEL {

// A tile's inputs: see Panel. `ahead`: elements from what is multiplied to what
// is fetched into the cache meanwhile; 0: nothing more.
template <class T>
struct Tile {
  const float* a;
  std::size_t lda;
  const T* const* b;
  int k;
  float* c;
  std::size_t ldc;
  std::ptrdiff_t ahead;
};

// The inputs of a tile's rows at one step of the depth. Three rows share an address:
// the processor adds a stride to one, or two. Left alone GCC keeps an address a row,
// and those that find no register in memory.
template <int MR>
class Inputs {
 public:
  Inputs(const float* a, std::size_t lda) : lda_(lda) {
#pragma GCC unroll 8
    for (int i = 0; i < kAddresses; ++i) rows_[i] = a + 3 * i * lda;
  }
  F at(int row, int step) const { return Simd::set1(rows_[row / 3][row % 3 * lda_ + step]); }
  void advance(int steps) {
#pragma GCC unroll 8
    for (int i = 0; i < kAddresses; ++i) {
      rows_[i] += steps;
      asm("" : "+r"(rows_[i]));
    }
  }

 private:
  static constexpr int kAddresses = (MR + 2) / 3;
  const float* rows_[kAddresses];
  std::size_t lda_;
};

// acc[m][n] += input(m) * weight(n). Whichever are fewer stay in registers while
// the others pass by. Unrolled by order: GCC leaves large tiles in loops, and then
// their sums in memory.
template <int MR, int N, class Input, class Weight>
[[gnu::always_inline]] inline void multiply(F (&acc)[MR][N], Input input, Weight weight) {
  if constexpr (MR < N) {
    F x[MR];
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) x[m] = input(m);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const F w = weight(n);
#pragma GCC unroll 16
      for (int m = 0; m < MR; ++m) acc[m][n] = Simd::accumulate(acc[m][n], x[m], w);
    }
  } else {
    F w[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) w[n] = weight(n);
#pragma GCC unroll 16
    for (int m = 0; m < MR; ++m) {
      const F x = input(m);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = Simd::accumulate(acc[m][n], x, w[n]);
    }
  }
}

// Blocks of bfloat16: a row holds two steps of the depth.
struct Bf16Block {
  using T = std::uint16_t;

  // The low or the high half of vector v of the pair at step k.
  template <bool High>
  static inline F half(const T* block, int k, int v) {
    const I pair = Simd::load_words(block + static_cast<std::size_t>(k) * kLanes + v * kWidth * 2);
    return High ? Simd::high_half(pair) : Simd::low_half(pair);
  }
  // The halves are widened one after the other, or AVX2 would run out of registers.
  template <int MR, int N, bool High>
  [[gnu::always_inline]] static inline void step(F (&acc)[MR][N], const Inputs<MR>& a,
                                                 const T* const (&b)[N / kVecs]) {
    multiply(
        acc, [&](int m) { return a.at(m, High ? 1 : 0); },
        [&](int n) { return half<High>(b[n / kVecs], 0, n % kVecs); });
  }
  template <int MR, int N>
  [[gnu::always_inline]] static inline void run(F (&acc)[MR][N], const Tile<T>& t) {
    constexpr int NB = N / kVecs;
    Inputs<MR> a(t.a, t.lda);
    const T* b[NB];
#pragma GCC unroll 8
    for (int n = 0; n < NB; ++n) b[n] = t.b[n];
    int k = 0;
    for (; k + 2 <= t.k; k += 2) {
#pragma GCC unroll 8
      for (int n = 0; n < NB; ++n) __builtin_prefetch(b[n] + t.ahead, 0, Simd::kLocality);
      step<MR, N, false>(acc, a, b);
      step<MR, N, true>(acc, a, b);
      a.advance(2);
#pragma GCC unroll 8
      for (int n = 0; n < NB; ++n) b[n] += 2 * kLanes;
    }
    if (k < t.k) step<MR, N, false>(acc, a, b);
  }
  // Vector v of the values of token `key` in a value block.
  static inline F value(const T* block, int key, int v) {
    return (key & 1) ? half<true>(block, key - 1, v) : half<false>(block, key, v);
  }
};

// Blocks of float32: a row holds one step of the depth.
struct F32Block {
  using T = float;

  static inline F value(const T* block, int k, int v) {
    return Simd::load(block + static_cast<std::size_t>(k) * kLanes + v * kWidth);
  }
  template <int MR, int N>
  [[gnu::always_inline]] static inline void run(F (&acc)[MR][N], const Tile<T>& t) {
    Inputs<MR> a(t.a, t.lda);
    for (int k = 0; k < t.k; ++k, a.advance(1)) {
      multiply(
          acc, [&](int m) { return a.at(m, 0); },
          [&](int n) { return value(t.b[n / kVecs], k, n % kVecs); });
    }
  }
};

// MR rows times NB blocks, one accumulator an output, depth in order.
template <class Block, int MR, int NB>
void tile(Tile<typename Block::T> t) {
  F acc[MR][NB * kVecs];
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < NB * kVecs; ++n) {
      acc[m][n] = Simd::zero();
    }
  }
  Block::run(acc, t);
#pragma GCC unroll 16
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < NB * kVecs; ++n) Simd::store(t.c + m * t.ldc + n * kWidth, acc[m][n]);
  }
}

// Calls f(std::integral_constant<int, N>) for N blocks after N blocks: N is NB as long
// as it can be, but two and two rather than three and one.
template <int NB, class Function>
void for_block_tiles(int blocks, Function f) {
  for (; blocks >= NB && !(NB == 3 && blocks == 4); blocks -= NB)
    f(std::integral_constant<int, NB>());
  if constexpr (NB > 2) {
    for (; blocks >= 2; blocks -= 2) f(std::integral_constant<int, 2>());
  }
  for (; blocks > 0; --blocks) f(std::integral_constant<int, 1>());
}

// `rows` rows, at most MR, times any number of blocks.
template <class Block, int MR = Simd::kMaxRows>
void tile_rows(int rows, int blocks, Tile<typename Block::T> t) {
  if constexpr (MR > 1) {
    if (rows < MR) {
      tile_rows<Block, MR - 1>(rows, blocks, t);
      return;
    }
  }
  for_block_tiles<Simd::blocks_for(MR)>(blocks, [&](auto width) {
    tile<Block, MR, width>(t);
    t.b += width;
    t.c += width * kLanes;
  });
}

// Calls f(first, count) for tiles of rows, all full but the last: a full tile has
// the accumulators that hide the latency of an FMA, and 6 + 2 rows are faster than
// 4 + 4.
template <class Function>
void for_row_tiles(int rows, int max_rows, Function f) {
  for (int first = 0; first < rows; first += max_rows) f(first, std::min(max_rows, rows - first));
}

// Tiles of rows pass over a group of blocks one after the other, and the next group
// is fetched meanwhile: blocks lie apart, which the processor does not foresee. The
// second tile fetches what is read after the panel: a burst of so many at once is
// dropped, where the products of a tile leave time between them.
template <class Block>
void panel(const Panel& p) {
  using T = typename Block::T;
  const auto* blocks = reinterpret_cast<const T* const*>(p.blocks);
  const int group = Simd::blocks_for(std::min(p.rows, Simd::kMaxRows));
  const auto to_next = p.to_next / static_cast<std::ptrdiff_t>(sizeof(T));
  for (int n = 0; n < p.num_blocks; n += group) {
    const std::ptrdiff_t ahead = n + group < p.num_blocks ? blocks[n + group] - blocks[n] : 0;
    for_row_tiles(p.rows, Simd::kMaxRows, [&](int first, int count) {
      tile_rows<Block>(
          count, std::min(group, p.num_blocks - n),
          Tile<T>{p.a + first * p.lda, p.lda, blocks + n, p.k, p.c + first * p.ldc + n * kLanes,
                  p.ldc, first == Simd::kMaxRows ? to_next : ahead});
    });
  }
}

}  // namespace FORERUN_LEVEL
}  // namespace forerun
