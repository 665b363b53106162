// Tiles of AMX, and the one product that weights, keys and values go through.
//
// Operand A is 16 rows of 32 steps, plain row-major; operand B is 32 steps of
// one packed block, 1024 contiguous bytes. A result depends on its own row of A
// and its own lane of B alone, so rows that only pad a tile change nothing, nor
// do lanes. TDPBF16PS sums the even and the odd steps of its 32 apart, then adds
// both to the result (Intel SDM, volume 2, TDPBF16PS): steps of zeros on both
// sides change nothing either.
#include <immintrin.h>

namespace forerun {
namespace amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileSteps = 32;
inline constexpr int kPassRows = 2 * kTileRows;
// How far ahead of the product weights are fetched into the L2 cache.
inline constexpr std::size_t kAhead = 8 * kTileSteps * kLanes;  // elements

// Tiles 0..3 results, 4 and 5 activations, 6 and 7 weights; all of full size,
// so the configuration never changes on a thread.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};
};

// GCC does not know that a tile instruction reads all of the memory at `p`, and
// leaves out stores to it that nothing else would read.
inline void see_memory(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

void thread_begin() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.bytes_per_row[t] = 64;
    config.rows[t] = kTileRows;
  }
  see_memory(&config);
  _tile_loadconfig(&config);
}

void thread_end() { _tile_release(); }

// Rows of A, and where their results go.
struct TileRows {
  const std::uint16_t* a;
  std::size_t lda;  // elements between rows of a
  int k;
  float* c;
  std::size_t ldc;  // elements between rows of c
};

inline void fetch(const std::uint16_t* tile) {
  for (int row = 0; row < kTileSteps / 2; ++row) __builtin_prefetch(tile + row * 2 * kLanes, 0, 2);
}

// The steps of a block behind the last whole tile, filled up with zeros. Half of
// the last pair of an odd depth may be anything.
struct BlockTail {
  explicit BlockTail(const std::uint16_t* block, int from, int k) {
    const int pairs = (k - from + 1) / 2;
    std::memcpy(tile, block + static_cast<std::size_t>(from) * kLanes,
                static_cast<std::size_t>(pairs) * 2 * kLanes * sizeof(std::uint16_t));
    if ((k & 1) != 0) {
      for (int lane = 0; lane < kLanes; ++lane) tile[bf16_block_index(lane, k - from)] = 0;
    }
    see_memory(tile);
  }
  alignas(64) std::uint16_t tile[kTileSteps * kLanes] = {};
};

// The same of 16 or 32 rows of A.
struct RowsTail {
  RowsTail(const TileRows& t, int rows, int from) {
    for (int r = 0; r < rows; ++r) {
      std::memcpy(tile + r * kTileSteps, t.a + r * t.lda + from,
                  (t.k - from) * sizeof(std::uint16_t));
    }
    see_memory(tile);
  }
  alignas(64) std::uint16_t tile[kPassRows * kTileSteps] = {};
};

// 32 rows of A, or 16, times two blocks, or one: c (+)= a * b.
template <bool TwoRowTiles, bool TwoBlocks>
void tiles(const TileRows& t, const std::uint16_t* b0, const std::uint16_t* b1, bool accumulate,
           bool ahead) {
  const std::size_t c_stride = t.ldc * sizeof(float);
  float* const c1 = t.c + kTileRows * t.ldc;
  if (accumulate) {
    _tile_loadd(0, t.c, c_stride);
    if constexpr (TwoBlocks) _tile_loadd(1, t.c + kLanes, c_stride);
    if constexpr (TwoRowTiles) _tile_loadd(2, c1, c_stride);
    if constexpr (TwoRowTiles && TwoBlocks) _tile_loadd(3, c1 + kLanes, c_stride);
  } else {
    _tile_zero(0);
    if constexpr (TwoBlocks) _tile_zero(1);
    if constexpr (TwoRowTiles) _tile_zero(2);
    if constexpr (TwoRowTiles && TwoBlocks) _tile_zero(3);
  }
  const auto step = [](const std::uint16_t* x, std::size_t ldx, const std::uint16_t* w0,
                       const std::uint16_t* w1) {
    const std::size_t stride = ldx * sizeof(std::uint16_t);
    _tile_loadd(4, x, stride);
    _tile_loadd(6, w0, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (TwoBlocks) {
      _tile_loadd(7, w1, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (TwoRowTiles) {
      _tile_loadd(5, x + kTileRows * ldx, stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (TwoBlocks) _tile_dpbf16ps(3, 5, 7);
    }
  };
  int i = 0;
  for (; i + kTileSteps <= t.k; i += kTileSteps) {
    const std::size_t at = static_cast<std::size_t>(i) * kLanes;
    if (ahead) {
      fetch(b0 + at + kAhead);
      if constexpr (TwoBlocks) fetch(b1 + at + kAhead);
    }
    step(t.a + i, t.lda, b0 + at, b1 + at);
  }
  if (i < t.k) {
    const RowsTail x(t, TwoRowTiles ? kPassRows : kTileRows, i);
    const BlockTail w0(b0, i, t.k), w1(TwoBlocks ? b1 : b0, i, t.k);
    step(x.tile, kTileSteps, w0.tile, w1.tile);
  }
  _tile_stored(0, t.c, c_stride);
  if constexpr (TwoBlocks) _tile_stored(1, t.c + kLanes, c_stride);
  if constexpr (TwoRowTiles) _tile_stored(2, c1, c_stride);
  if constexpr (TwoRowTiles && TwoBlocks) _tile_stored(3, c1 + kLanes, c_stride);
}

// Up to 32 rows; `two` is false where b1 is not to be multiplied.
inline void tiles(int rows, bool two, const TileRows& t, const std::uint16_t* b0,
                  const std::uint16_t* b1, bool accumulate, bool ahead) {
  if (rows > kTileRows) {
    two ? tiles<true, true>(t, b0, b1, accumulate, ahead)
        : tiles<true, false>(t, b0, b1, accumulate, ahead);
  } else {
    two ? tiles<false, true>(t, b0, b1, accumulate, ahead)
        : tiles<false, false>(t, b0, b1, accumulate, ahead);
  }
}

}  // namespace amx
}  // namespace forerun
