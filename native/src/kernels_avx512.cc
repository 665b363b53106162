// AVX-512 (F, BW, DQ, VL): sixteen lanes, products and sums in float32.
#define FORERUN_LEVEL avx512
#include "avx512-inl.h"
#include "kernels-inl.h"

namespace forerun {

const Kernels* kernels_avx512(bool bf16) {
  using namespace avx512;
  static constexpr Kernels with_bf16 = float_kernels<true>("avx512");
  static constexpr Kernels with_f32 = float_kernels<false>("avx512");
  return bf16 ? &with_bf16 : &with_f32;
}

}  // namespace forerun
