// AVX-512 (F, BW, DQ, VL): sixteen lanes, products and sums in float32.
#define FORERUN_LEVEL avx512
#include "avx512-inl.h"
#include "kernels-inl.h"

namespace forerun {

const Kernels* kernels_avx512(bool bf16) {
  using namespace avx512;
  static const Kernels with_bf16 = {"avx512",
                                    4,
                                    0,
                                    gemm<FloatAct<true>>,
                                    panel<Bf16Block>,
                                    value_rows<Bf16Block>,
                                    softmax,
                                    rms_norm,
                                    rope,
                                    to_act<FloatAct<true>>,
                                    to_act<FloatAct<true>>,
                                    nothing,
                                    nothing,
                                    kGroup};
  static const Kernels with_f32 = {"avx512",
                                   4,
                                   0,
                                   gemm<FloatAct<false>>,
                                   panel<F32Block>,
                                   value_rows<F32Block>,
                                   softmax,
                                   rms_norm,
                                   rope,
                                   to_act<FloatAct<false>>,
                                   to_act<FloatAct<false>>,
                                   nothing,
                                   nothing,
                                   kGroup};
  return bf16 ? &with_bf16 : &with_f32;
}

}  // namespace forerun
