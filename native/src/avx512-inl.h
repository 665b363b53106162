// The vector type of the AVX-512 levels: sixteen lanes, products and sums in
// float32. Included with FORERUN_LEVEL defined; see kernels-inl.h.
#include <immintrin.h>

#include <cstdint>

namespace forerun {
namespace FORERUN_LEVEL {

struct Simd {
  using F = __m512;
  using I = __m512i;
  static constexpr int kWidth = 16;
  static constexpr int kMaxRows = 12;
  // 32 registers: up to 24 accumulators, the rest for weights and one input.
  static constexpr int blocks_for(int rows) { return rows <= 6 ? 4 : rows <= 8 ? 3 : 2; }
  static constexpr int kGroup = 6;
  static constexpr int kAhead = 1024;
  static constexpr int kLocality = 3;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F fmadd(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F accumulate(F sum, F a, F b) { return _mm512_fmadd_ps(a, b, sum); }
  static F fnmadd(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F scale2(F x, F n) {
    const I shifted = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), shifted));
  }
  static F keep_above(F x, F score) {
    const F floor = _mm512_set1_ps(-__builtin_inff());
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(score, floor, _CMP_GT_OQ), x);
  }
  static bool any_reaches(F x, float limit) {
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ) != 0;
  }
  static I load_words(const std::uint16_t* p) { return _mm512_loadu_si512(p); }
  static F low_half(I pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
  static F high_half(I pair) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // To the nearest bfloat16, ties to even; NaN stays NaN, in its upper half too.
  static F round_bf16(F x) {
    const I bits = _mm512_castps_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const I kept = _mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const I quiet = _mm512_set1_epi32(0x00400000);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(kept, nan, bits, quiet));
  }
};

// Activations in bfloat16, for the levels that multiply bfloat16 pairs.
struct Bf16Act {
  using T = std::uint16_t;
  static inline void store(T* out, Simd::F x) {
    const __m512i bits = _mm512_srli_epi32(_mm512_castps_si512(Simd::round_bf16(x)), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(bits));
  }
};

}  // namespace FORERUN_LEVEL
}  // namespace forerun
