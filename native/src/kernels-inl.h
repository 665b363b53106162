// The kernels of the vector levels, written once over a small vector type.
//
// A translation unit defines, in namespace forerun::FORERUN_LEVEL, a struct
// `Simd` (see kernels_avx2.cc) and then includes this file. Nothing here may be
// shared between levels: each unit has its own flags, and its own namespace.
//
// Simd gives: F, I vector types of kWidth 32-bit lanes; kVecs = 16 / kWidth;
// kMaxRows rows of a tile at most; blocks_for(rows) blocks of a tile, so that
// all accumulators stay in registers; kGroup blocks between two epilogues; kAhead
// words from the weights that are multiplied to those that are fetched meanwhile,
// 0: a whole group; accumulate(sum, a, b) = fmadd(a, b, sum).

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "forerun/kernels.h"
#include "forerun/packed.h"

namespace forerun {
namespace FORERUN_LEVEL {

using F = Simd::F;
using I = Simd::I;
inline constexpr int kWidth = Simd::kWidth;
inline constexpr int kVecs = kLanes / kWidth;
inline constexpr int kGroup = Simd::kGroup;
inline constexpr int kRowsInCache = 64;  // rows whose activations stay in the L2 cache

}  // namespace FORERUN_LEVEL
}  // namespace forerun

#include "tiles-inl.h"

namespace forerun {
namespace FORERUN_LEVEL {

// e^x for x <= 0 or moderate x; exactly 1 at 0. Cody-Waite reduction, Taylor to
// degree 7 on [-ln2/2, ln2/2]: about 1 ulp.
inline F vexp(F x) {
  x = Simd::max(x, Simd::set1(-87.33654f));
  x = Simd::min(x, Simd::set1(88.0f));
  const F n = Simd::round(Simd::mul(x, Simd::set1(1.44269504088896341f)));
  F r = Simd::fnmadd(n, Simd::set1(0.693359375f), x);
  r = Simd::fnmadd(n, Simd::set1(-2.12194440e-4f), r);
  F p = Simd::set1(1.0f / 5040);
  p = Simd::fmadd(p, r, Simd::set1(1.0f / 720));
  p = Simd::fmadd(p, r, Simd::set1(1.0f / 120));
  p = Simd::fmadd(p, r, Simd::set1(1.0f / 24));
  p = Simd::fmadd(p, r, Simd::set1(1.0f / 6));
  p = Simd::fmadd(p, r, Simd::set1(0.5f));
  p = Simd::fmadd(p, r, Simd::set1(1.0f));
  p = Simd::fmadd(p, r, Simd::set1(1.0f));
  return Simd::scale2(p, n);
}

// The sum of all lanes, taken from the first to the last.
inline float sum_lanes(F x) {
  alignas(64) float lanes[kWidth];
  Simd::store(lanes, x);
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

// Scales, and caps, the scores that are not hidden; returns the largest.
inline float scale_scores(const Softmax& s) {
  float max = -std::numeric_limits<float>::infinity();
  int i = s.hidden;
  if (s.cap == 0 && i + kWidth <= s.n) {
    const F scale = Simd::set1(s.scale);
    F largest = Simd::set1(max);
    for (; i + kWidth <= s.n; i += kWidth) {
      const F x = Simd::mul(Simd::load(s.s + i), scale);
      Simd::store(s.s + i, x);
      largest = Simd::max(x, largest);
    }
    alignas(64) float lanes[kWidth];
    Simd::store(lanes, largest);
    max = *std::max_element(lanes, lanes + kWidth);
  }
  for (; i < s.n; ++i) {
    float x = s.s[i] * s.scale;
    if (s.cap > 0) x = s.cap * std::tanh(x / s.cap);
    s.s[i] = x;
    max = x > max ? x : max;
  }
  return max;
}

inline void softmax(Softmax& s) {
  const float max = scale_scores(s);
  for (int i = 0; i < s.hidden && i < s.n; ++i) s.s[i] = -std::numeric_limits<float>::infinity();
  s.max = max;
  s.sum = 0;
  if (s.hidden >= s.n) {
    std::fill(s.s, s.s + s.n, 0.0f);
    return;
  }
  // Lanes follow the position; the sum of lanes is taken in one order.
  const F shift = Simd::set1(max);
  F sum = Simd::zero();
  int i = 0;
  for (; i + kWidth <= s.n; i += kWidth) {
    const F e = Simd::keep_above(vexp(Simd::sub(Simd::load(s.s + i), shift)), Simd::load(s.s + i));
    Simd::store(s.s + i, e);
    sum = Simd::add(sum, e);
  }
  if (i < s.n) {
    alignas(64) float rest[kWidth];
    for (int j = 0; j < kWidth; ++j) {
      rest[j] = i + j < s.n ? s.s[i + j] : -std::numeric_limits<float>::infinity();
    }
    const F e = Simd::keep_above(vexp(Simd::sub(Simd::load(rest), shift)), Simd::load(rest));
    Simd::store(rest, e);
    sum = Simd::add(sum, e);
    for (int j = 0; i + j < s.n; ++j) s.s[i + j] = rest[j];
  }
  s.sum = sum_lanes(sum);
}

inline void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  F sum = Simd::zero();
  for (int i = 0; i < n; i += kWidth) {
    const F value = Simd::load(x + i);
    sum = Simd::fmadd(value, value, sum);
  }
  const F scale = Simd::set1(1.0f / std::sqrt(sum_lanes(sum) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += kWidth) {
    Simd::store(out + i, Simd::mul(Simd::mul(Simd::load(x + i), scale), Simd::load(weight + i)));
  }
}

inline void rope(float* x, const float* cos, const float* sin, int d) {
  const int half = d / 2;
  int i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    const F a = Simd::load(x + i), b = Simd::load(x + half + i);
    const F c = Simd::load(cos + i), s = Simd::load(sin + i);
    Simd::store(x + i, Simd::sub(Simd::mul(a, c), Simd::mul(b, s)));
    Simd::store(x + half + i, Simd::add(Simd::mul(b, c), Simd::mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

inline F silu_mul(F gate, F up) {
  const F one = Simd::set1(1.0f);
  return Simd::mul(Simd::div(gate, Simd::add(one, vexp(Simd::sub(Simd::zero(), gate)))), up);
}

// Activations in float32; with Round, of bfloat16 precision.
template <bool Round>
struct FloatAct {
  using T = float;
  static inline void store(T* out, F x) { Simd::store(out, Round ? Simd::round_bf16(x) : x); }
};

template <class Act>
void to_act(const float* x, int n, void* act) {
  auto* out = static_cast<typename Act::T*>(act);
  for (int i = 0; i < n; i += kWidth) Act::store(out + i, Simd::load(x + i));
}

// Takes y[count][kGroup * 16], finished outputs of rows from `first` and blocks from `block` on.
template <class Act>
void finish(const Gemm& g, int first, int count, int block, int blocks, float* y) {
  constexpr std::size_t ldy = kGroup * kLanes;
  const int n0 = block * kLanes;
  if (g.bias != nullptr) {
    for (int m = 0; m < count; ++m) {
      for (int i = 0; i < blocks * kLanes; i += kWidth) {
        Simd::store(y + m * ldy + i,
                    Simd::add(Simd::load(y + m * ldy + i), Simd::load(g.bias + n0 + i)));
      }
    }
  }
  for (int m = 0; m < count; ++m) {
    const float* row = y + m * ldy;
    const std::size_t r = first + m;
    switch (g.epilogue) {
      case Epilogue::kStore:
        for (int i = 0; i < blocks * kLanes; i += kWidth) {
          Simd::store(g.c + r * g.ldc + n0 + i, Simd::load(row + i));
        }
        break;
      case Epilogue::kAdd:
        for (int i = 0; i < blocks * kLanes; i += kWidth) {
          float* c = g.c + r * g.ldc + n0 + i;
          Simd::store(c, Simd::add(Simd::load(c), Simd::load(row + i)));
        }
        break;
      case Epilogue::kSiluMul: {
        auto* act = static_cast<typename Act::T*>(g.act) + r * g.ld_act;
        for (int b = 0; b < blocks; b += 2) {
          for (int i = 0; i < kLanes; i += kWidth) {
            Act::store(
                act + (block + b) / 2 * kLanes + i,
                silu_mul(Simd::load(row + b * kLanes + i), Simd::load(row + (b + 1) * kLanes + i)));
          }
        }
        break;
      }
      case Epilogue::kArgmax: {
        F top = Simd::load(row);
        for (int i = kWidth; i < blocks * kLanes; i += kWidth)
          top = Simd::max(top, Simd::load(row + i));
        if (!Simd::any_reaches(top, g.best[r])) break;
        for (int i = 0; i < blocks * kLanes && n0 + i < g.id_limit; ++i) {
          if (row[i] > g.best[r] || (row[i] == g.best[r] && n0 + i < g.best_id[r])) {
            g.best[r] = row[i];
            g.best_id[r] = n0 + i;
          }
        }
        break;
      }
    }
  }
}

// The loop over blocks and rows. `compute(first, count, block, blocks, y)` fills
// y[count][kGroup * 16] for rows [first, first + count).
template <class Act, class Compute>
void gemm_loop(const Gemm& g, int max_rows, Compute compute) {
  alignas(64) float y[32 * kGroup * kLanes];
  for (int top = 0; top < g.rows; top += kRowsInCache) {
    const int rows = std::min(g.rows - top, kRowsInCache);
    for (int block = g.block_begin; block < g.block_end; block += kGroup) {
      const int blocks = std::min(g.block_end - block, kGroup);
      for_row_tiles(rows, max_rows, [&](int first, int count) {
        compute(top + first, count, block, blocks, y);
        finish<Act>(g, top + first, count, block, blocks, y);
      });
    }
  }
}

// Activations in float32, products and sums by FMA in float32. Where kAhead is 0, the
// next group of blocks is fetched while the first tile of rows passes over one.
template <class Act>
void gemm(const Gemm& g) {
  const auto* a = static_cast<const float*>(g.a);
  const std::size_t block_size = static_cast<std::size_t>(kLanes) * g.k;
  gemm_loop<Act>(g, Simd::kMaxRows, [&](int first, int count, int block, int blocks, float* y) {
    const std::uint16_t* b[kGroup];
    for (int n = 0; n < blocks; ++n) b[n] = g.w + (block + n) * block_size;
    std::ptrdiff_t ahead = Simd::kAhead;
    if (ahead == 0 && first % kRowsInCache == 0) ahead = kGroup * block_size;
    tile_rows<Bf16Block>(
        count, blocks,
        Tile<std::uint16_t>{a + first * g.lda, g.lda, b, g.k, y, kGroup * kLanes, ahead});
  });
}

inline void nothing() {}

}  // namespace FORERUN_LEVEL
}  // namespace forerun

#include "values-inl.h"

namespace forerun {
namespace FORERUN_LEVEL {

// The kernels of a level that has no products of its own, with KV and activations in
// float32 or of bfloat16 precision. Constant: a processor without the level must be
// able to ask for the table.
template <bool Bf16>
constexpr Kernels float_kernels(const char* name) {
  using Block = std::conditional_t<Bf16, Bf16Block, F32Block>;
  Kernels k{};
  k.name = name;
  k.act_bytes = sizeof(float);
  k.gemm = gemm<FloatAct<Bf16>>;
  k.panel = panel<Block>;
  k.value_rows = value_rows<Block>;
  k.softmax = softmax;
  k.rms_norm = rms_norm;
  k.rope = rope;
  k.to_act = to_act<FloatAct<Bf16>>;
  k.to_kv = to_act<FloatAct<Bf16>>;
  k.thread_begin = nothing;
  k.thread_end = nothing;
  k.group = kGroup;
  return k;
}

}  // namespace FORERUN_LEVEL
}  // namespace forerun
