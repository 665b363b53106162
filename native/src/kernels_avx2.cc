// AVX2 and FMA: eight lanes, products and sums in float32.
#include <immintrin.h>

#include <cstdint>

#define FORERUN_LEVEL avx2

namespace forerun {
namespace avx2 {

struct Simd {
  using F = __m256;
  using I = __m256i;
  static constexpr int kWidth = 8;
  static constexpr int kMaxRows = 6;
  // 16 registers: 6 to 12 accumulators, the rest for weights, inputs and a mask.
  static constexpr int blocks_for(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
  static constexpr int kGroup = 4;
  static constexpr int kAhead = 0;
  static constexpr int kLocality = 2;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F fmadd(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // sum + a * b, the sum in the register where it was: left to itself, GCC puts sums
  // into others, runs out of them, and keeps a third of a tile's sums in memory.
  static F accumulate(F sum, F a, F b) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
  }
  static F fnmadd(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x * 2^n for whole n in the range of exponents.
  static F scale2(F x, F n) {
    const I shifted = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shifted));
  }
  // x where score is above -infinity, else 0.
  static F keep_above(F x, F score) {
    const F floor = _mm256_set1_ps(-__builtin_inff());
    return _mm256_and_ps(x, _mm256_cmp_ps(score, floor, _CMP_GT_OQ));
  }
  static bool any_reaches(F x, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GE_OQ)) != 0;
  }
  static I load_words(const std::uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static F low_half(I pair) { return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)); }
  static F high_half(I pair) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // To the nearest bfloat16, ties to even; NaN stays as it is.
  static F round_bf16(F x) {
    const I bits = _mm256_castps_si256(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const I kept = _mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    const F nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(_mm256_castsi256_ps(kept), x, nan);
  }
};

}  // namespace avx2
}  // namespace forerun

#include "kernels-inl.h"

namespace forerun {

const Kernels* kernels_avx2(bool bf16) {
  using namespace avx2;
  static constexpr Kernels with_bf16 = float_kernels<true>("avx2");
  static constexpr Kernels with_f32 = float_kernels<false>("avx2");
  return bf16 ? &with_bf16 : &with_f32;
}

}  // namespace forerun
