// AMX: the weights are multiplied tile by tile by TDPBF16PS. Attention and
// element-wise work are those of AVX-512, as is everything in float32.
//
// Operand A is 16 rows of activations times 32 steps, plain row-major; operand
// B is 32 steps of one packed block, 1024 contiguous bytes. A result row
// depends on its own row of A and on B alone, so rows that only pad a tile
// change nothing. Two tiles of rows share each tile of weights.
#define FORERUN_LEVEL amx
#include "avx512-inl.h"
#include "kernels-inl.h"

namespace forerun {
namespace amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileSteps = 32;
inline constexpr int kPassRows = 2 * kTileRows;

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

// Blocks `b` (two, or one twice) times 32 rows of `a`, or the first 16 of them.
template <bool TwoRowTiles, bool TwoBlocks>
void tiles(const std::uint16_t* a, std::size_t lda, const std::uint16_t* b0,
           const std::uint16_t* b1, int k, float* y) {
  constexpr std::size_t kRowBytes = kGroup * kLanes * sizeof(float);
  const std::size_t stride = lda * sizeof(std::uint16_t);
  _tile_zero(0);
  if constexpr (TwoBlocks) _tile_zero(1);
  if constexpr (TwoRowTiles) _tile_zero(2);
  if constexpr (TwoRowTiles && TwoBlocks) _tile_zero(3);
  const auto step = [&](const std::uint16_t* x0, const std::uint16_t* x1, std::size_t x_stride,
                        const std::uint16_t* w0, const std::uint16_t* w1) {
    _tile_loadd(4, x0, x_stride);
    _tile_loadd(6, w0, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (TwoBlocks) {
      _tile_loadd(7, w1, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (TwoRowTiles) {
      _tile_loadd(5, x1, x_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (TwoBlocks) _tile_dpbf16ps(3, 5, 7);
    }
  };
  int i = 0;
  for (; i + kTileSteps <= k; i += kTileSteps) {
    const std::size_t at = static_cast<std::size_t>(i) * kLanes;
    step(a + i, a + kTileRows * lda + i, stride, b0 + at, b1 + at);
  }
  if (i < k) {
    // The last steps, filled up with zeros on both sides.
    alignas(64) std::uint16_t x[kPassRows * kTileSteps] = {};
    alignas(64) std::uint16_t w[2][kTileSteps * kLanes] = {};
    const int rows = TwoRowTiles ? kPassRows : kTileRows;
    for (int r = 0; r < rows; ++r) {
      std::memcpy(x + r * kTileSteps, a + r * lda + i, (k - i) * sizeof(std::uint16_t));
    }
    const std::size_t bytes = static_cast<std::size_t>(k - i) * kLanes * sizeof(std::uint16_t);
    std::memcpy(w[0], b0 + static_cast<std::size_t>(i) * kLanes, bytes);
    std::memcpy(w[1], b1 + static_cast<std::size_t>(i) * kLanes, bytes);
    see_memory(x);
    see_memory(w);
    step(x, x + kTileRows * kTileSteps, kTileSteps * sizeof(std::uint16_t), w[0], w[1]);
  }
  _tile_stored(0, y, kRowBytes);
  if constexpr (TwoBlocks) _tile_stored(1, y + kLanes, kRowBytes);
  if constexpr (TwoRowTiles) _tile_stored(2, y + kTileRows * kGroup * kLanes, kRowBytes);
  if constexpr (TwoRowTiles && TwoBlocks) {
    _tile_stored(3, y + kTileRows * kGroup * kLanes + kLanes, kRowBytes);
  }
}

void tile_gemm(const Gemm& g) {
  const auto* a = static_cast<const std::uint16_t*>(g.a);
  const std::size_t block_size = static_cast<std::size_t>(kLanes) * g.k;
  gemm_loop<Bf16Act>(g, kPassRows, [&](int first, int count, int block, int blocks, float* y) {
    const std::uint16_t* x = a + first * g.lda;
    for (int n = 0; n < blocks; n += 2) {
      const std::uint16_t* b0 = g.w + (block + n) * block_size;
      const bool two = n + 1 < blocks;
      const std::uint16_t* b1 = two ? b0 + block_size : b0;
      float* out = y + n * kLanes;
      if (count > kTileRows) {
        two ? tiles<true, true>(x, g.lda, b0, b1, g.k, out)
            : tiles<true, false>(x, g.lda, b0, b1, g.k, out);
      } else {
        two ? tiles<false, true>(x, g.lda, b0, b1, g.k, out)
            : tiles<false, false>(x, g.lda, b0, b1, g.k, out);
      }
    }
  });
}

}  // namespace amx

const Kernels* kernels_amx(bool bf16) {
  using namespace amx;
  static const Kernels with_bf16 = {
      "amx",   2,        kPassRows, tile_gemm,       panel<Bf16Block>, value_rows<Bf16Block>,
      softmax, rms_norm, rope,      to_act<Bf16Act>, thread_begin,     thread_end};
  static const Kernels with_f32 = {
      "amx",   4,        0,    gemm<FloatAct<false>>,   panel<F32Block>, value_rows<F32Block>,
      softmax, rms_norm, rope, to_act<FloatAct<false>>, nothing,         nothing};
  return bf16 ? &with_bf16 : &with_f32;
}

}  // namespace forerun
