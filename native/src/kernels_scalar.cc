// The readable reference, for any x86-64: plain loops, products and sums in
// float32 rounded one by one, each output accumulated in the order of the
// depth. The lane loops are innermost so that a compiler may vectorise them
// without changing that order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "forerun/kernels.h"
#include "forerun/packed.h"

namespace forerun {
namespace {

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Bf16Block {
  using T = std::uint16_t;
  static float at(const T* block, int lane, int k) {
    return bf16_to_float(block[bf16_block_index(lane, k)]);
  }
};

struct F32Block {
  using T = float;
  static float at(const T* block, int lane, int k) { return block[f32_block_index(lane, k)]; }
};

// y[16] += a[k] * block. Sums are local, so that a compiler keeps them in registers.
void accumulate(const float* a, const float* block, int k, float* y) {
  float sums[kLanes];
  std::copy(y, y + kLanes, sums);
  for (int i = 0; i < k; ++i) {
    const float x = a[i];
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += x * block[f32_block_index(lane, i)];
  }
  std::copy(sums, sums + kLanes, y);
}

// The same; a pair of steps is one word a lane, the even step in its low half.
void accumulate(const float* a, const std::uint16_t* block, int k, float* y) {
  float sums[kLanes];
  std::copy(y, y + kLanes, sums);
  for (int i = 0; i < k; i += 2) {
    std::uint32_t pairs[kLanes];
    std::memcpy(pairs, block + bf16_block_index(0, i), sizeof pairs);
    const float even = a[i];
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += even * float_of(pairs[lane] << 16);
    if (i + 1 == k) break;
    const float odd = a[i + 1];
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += odd * float_of(pairs[lane] & 0xffff0000u);
    }
  }
  std::copy(sums, sums + kLanes, y);
}

template <class Block>
void panel(const Panel& p) {
  for (int row = 0; row < p.rows; ++row) {
    for (int n = 0; n < p.num_blocks; ++n) {
      float* c = p.c + row * p.ldc + n * kLanes;
      std::fill(c, c + kLanes, 0.0f);
      accumulate(p.a + row * p.lda, static_cast<const typename Block::T*>(p.blocks[n]), p.k, c);
    }
  }
}

// Whether the sixteen keys from `key` on are a unit as it lies in the cache.
bool whole_unit(const ValueRows& v, int key) {
  if (key + kLanes > v.keys) return false;
  for (int i = 0; i < kLanes; ++i) {
    if (v.units[key + i] != v.units[key] || v.lanes[key + i] != i) return false;
  }
  return true;
}

template <class Block>
void value_rows(const ValueRows& v) {
  using T = typename Block::T;
  for (int key = 0, count; key < v.keys; key += count) {
    const auto* unit = static_cast<const T*>(v.units[key]);
    const bool whole = whole_unit(v, key);
    count = whole ? kLanes : 1;
    for (int row = 0; row < v.rows; ++row) {
      const float* p = v.p + row * v.ldp + key;
      for (int n = 0; n < v.d / kLanes; ++n) {
        const T* block = unit + static_cast<std::size_t>(n) * kLanes * kLanes;
        float* o = v.o + row * v.ldo + n * kLanes;
        if (whole) {
          accumulate(p, block, kLanes, o);
          continue;
        }
        for (int i = 0; i < kLanes; ++i) o[i] += p[0] * Block::at(block, i, v.lanes[key]);
      }
    }
  }
}

void softmax(Softmax& s) {
  s.max = -std::numeric_limits<float>::infinity();
  s.sum = 0;
  for (int i = s.hidden; i < s.n; ++i) {
    float x = s.s[i] * s.scale;
    if (s.cap > 0) x = s.cap * std::tanh(x / s.cap);
    s.s[i] = x;
    s.max = std::max(s.max, x);
  }
  for (int i = 0; i < s.n; ++i) {
    s.s[i] = i < s.hidden ? 0.0f : std::exp(s.s[i] - s.max);
    s.sum += s.s[i];
  }
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void rope(float* x, const float* cos, const float* sin, int d) {
  for (int i = 0; i < d / 2; ++i) {
    const float a = x[i], b = x[d / 2 + i];
    x[i] = a * cos[i] - b * sin[i];
    x[d / 2 + i] = b * cos[i] + a * sin[i];
  }
}

template <bool Round>
float act_value(float x) {
  return Round ? round_to_bf16(x) : x;
}

template <bool Round>
void to_act(const float* x, int n, void* act) {
  for (int i = 0; i < n; ++i) static_cast<float*>(act)[i] = act_value<Round>(x[i]);
}

template <bool Round>
void gemm(const Gemm& g) {
  std::vector<float> gates(static_cast<std::size_t>(g.rows) * kLanes);  // of the block before
  for (int block = g.block_begin; block < g.block_end; ++block) {
    for (int row = 0; row < g.rows; ++row) {
      const float* a = static_cast<const float*>(g.a) + row * g.lda;
      float y[kLanes] = {};
      accumulate(a, g.w + static_cast<std::size_t>(block) * kLanes * g.k, g.k, y);
      for (int lane = 0; lane < kLanes; ++lane) {
        const int n = block * kLanes + lane;
        float& gate = gates[static_cast<std::size_t>(row) * kLanes + lane];
        if (g.bias != nullptr) y[lane] += g.bias[n];
        switch (g.epilogue) {
          case Epilogue::kStore:
            g.c[row * g.ldc + n] = y[lane];
            break;
          case Epilogue::kAdd:
            g.c[row * g.ldc + n] += y[lane];
            break;
          case Epilogue::kSiluMul:
            if (block % 2 == 0) {
              gate = y[lane];
            } else {
              const float silu = gate / (1.0f + std::exp(-gate));
              static_cast<float*>(g.act)[row * g.ld_act + block / 2 * kLanes + lane] =
                  act_value<Round>(silu * y[lane]);
            }
            break;
          case Epilogue::kArgmax:
            if (n < g.id_limit &&
                (y[lane] > g.best[row] || (y[lane] == g.best[row] && n < g.best_id[row]))) {
              g.best[row] = y[lane];
              g.best_id[row] = n;
            }
            break;
        }
      }
    }
  }
}

void nothing() {}

}  // namespace

const Kernels* kernels_scalar(bool bf16) {
  static const Kernels with_bf16 = {
      "scalar", 4,        0,    gemm<true>,   panel<Bf16Block>, value_rows<Bf16Block>,
      softmax,  rms_norm, rope, to_act<true>, to_act<true>,     nothing,
      nothing,  2};
  static const Kernels with_f32 = {
      "scalar", 4,        0,    gemm<false>,   panel<F32Block>, value_rows<F32Block>,
      softmax,  rms_norm, rope, to_act<false>, to_act<false>,   nothing,
      nothing,  2};
  return bf16 ? &with_bf16 : &with_f32;
}

}  // namespace forerun
