// AVX512-BF16: the weights are multiplied in pairs by VDPBF16PS. Attention and
// element-wise work are those of AVX-512, as is everything in float32.
#define FORERUN_LEVEL avx512_bf16
#include "avx512-inl.h"
#include "kernels-inl.h"

namespace forerun {
namespace avx512_bf16 {

// Words from those that are multiplied to those that are fetched meanwhile, of the
// next block at the end of one: the processor's own prefetching stops at pages.
constexpr int kAhead = 2048;

// Blocks multiplied pair by pair: one VDPBF16PS a pair of steps, in order.
template <int MR, int NB>
void pair_tile(const std::uint16_t* a, std::size_t lda, const std::uint16_t* const* b, int k,
               float* y) {
  F acc[MR][NB];
  for (int m = 0; m < MR; ++m) {
    for (int n = 0; n < NB; ++n) acc[m][n] = Simd::zero();
  }
  for (int i = 0; i < k; i += 2) {
    __m512bh w[NB];
    for (int n = 0; n < NB; ++n) {
      const std::uint16_t* words = b[n] + static_cast<std::size_t>(i) * kLanes;
      _mm_prefetch(reinterpret_cast<const char*>(words + kAhead), _MM_HINT_T0);
      w[n] = reinterpret_cast<__m512bh>(Simd::load_words(words));
    }
    for (int m = 0; m < MR; ++m) {
      int pair;
      std::memcpy(&pair, a + m * lda + i, sizeof pair);
      const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      for (int n = 0; n < NB; ++n) acc[m][n] = _mm512_dpbf16_ps(acc[m][n], x, w[n]);
    }
  }
  for (int m = 0; m < MR; ++m) {
    for (int n = 0; n < NB; ++n) Simd::store(y + m * kGroup * kLanes + n * kLanes, acc[m][n]);
  }
}

template <int MR = Simd::kMaxRows>
void pair_tiles(int rows, const std::uint16_t* a, std::size_t lda, const std::uint16_t* const* b,
                int blocks, int k, float* y) {
  if constexpr (MR > 1) {
    if (rows < MR) {
      pair_tiles<MR - 1>(rows, a, lda, b, blocks, k, y);
      return;
    }
  }
  constexpr int NB = Simd::blocks_for(MR);
  int n = 0;
  for (; n + NB <= blocks; n += NB) pair_tile<MR, NB>(a, lda, b + n, k, y + n * kLanes);
  for (; n < blocks; ++n) pair_tile<MR, 1>(a, lda, b + n, k, y + n * kLanes);
}

void pair_gemm(const Gemm& g) {
  const auto* a = static_cast<const std::uint16_t*>(g.a);
  const std::size_t block_size = static_cast<std::size_t>(kLanes) * g.k;
  gemm_loop<Bf16Act>(g, Simd::kMaxRows, [&](int first, int count, int block, int blocks, float* y) {
    const std::uint16_t* b[kGroup];
    for (int n = 0; n < blocks; ++n) b[n] = g.w + (block + n) * block_size;
    pair_tiles(count, a + first * g.lda, g.lda, b, blocks, g.k, y);
  });
}

constexpr Kernels pair_kernels() {
  Kernels k = float_kernels<true>("avx512_bf16");
  k.act_bytes = sizeof(std::uint16_t);
  k.gemm = pair_gemm;
  k.to_act = to_act<Bf16Act>;
  return k;
}

}  // namespace avx512_bf16

const Kernels* kernels_avx512_bf16(bool bf16) {
  using namespace avx512_bf16;
  static constexpr Kernels with_bf16 = pair_kernels();
  static constexpr Kernels with_f32 = float_kernels<false>("avx512_bf16");
  return bf16 ? &with_bf16 : &with_f32;
}

}  // namespace forerun
