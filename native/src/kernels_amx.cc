// AMX: weights, keys and values in bfloat16 are multiplied tile by tile by
// TDPBF16PS. Element-wise work is that of AVX-512, as is everything in float32.
#define FORERUN_LEVEL amx
#include "avx512-inl.h"
#include "kernels-inl.h"
// Needs the above.
#include "amx_tiles-inl.h"
// Needs the above.
#include "amx_attention-inl.h"

namespace forerun {
namespace amx {

// Activations of a slab stay in the L2 cache while all weights pass.
inline constexpr int kSlabBytes = 1 << 20;

inline int slab_rows(int k) {
  return std::max(2 * kPassRows, kSlabBytes / (2 * k) / kPassRows * kPassRows);
}

// Two tiles of rows share each tile of weights. While the first rows of a slab
// pass, the weights that come next are fetched.
void tile_gemm(const Gemm& g) {
  const auto* a = static_cast<const std::uint16_t*>(g.a);
  const std::size_t block_size = static_cast<std::size_t>(kLanes) * g.k;
  alignas(64) float y[kPassRows * kGroup * kLanes];
  const int slab = slab_rows(g.k);
  for (int top = 0; top < g.rows; top += slab) {
    const int end = std::min(g.rows, top + slab);
    for (int block = g.block_begin; block < g.block_end; block += kGroup) {
      const int blocks = std::min(g.block_end - block, kGroup);
      for (int first = top; first < end; first += kPassRows) {
        const int count = std::min(kPassRows, end - first);
        for (int n = 0; n < blocks; n += 2) {
          const std::uint16_t* b = g.w + (block + n) * block_size;
          tiles(count, n + 1 < blocks,
                {a + first * g.lda, g.lda, g.k, y + n * kLanes, kGroup * kLanes}, b, b + block_size,
                false, first == top);
        }
        see_memory(y);
        finish<Bf16Act>(g, first, count, block, blocks, y);
      }
    }
  }
}

constexpr Kernels tile_kernels() {
  Kernels k = float_kernels<true>("amx");
  k.act_bytes = sizeof(std::uint16_t);
  k.spare_rows = kPassRows;
  k.gemm = tile_gemm;
  k.panel = tile_panel;
  k.value_rows = tile_value_rows;
  k.to_act = to_act<Bf16Act>;
  k.thread_begin = thread_begin;
  k.thread_end = thread_end;
  k.value_step = kTileSteps;
  return k;
}

}  // namespace amx

const Kernels* kernels_amx(bool bf16) {
  using namespace amx;
  static constexpr Kernels with_bf16 = tile_kernels();
  static constexpr Kernels with_f32 = float_kernels<false>("amx");
  return bf16 ? &with_bf16 : &with_f32;
}

}  // namespace forerun
