// What one instruction set level computes, as a table of functions.
//
// Every function gives each output element through one fixed sequence of
// operations that depends on nothing but the inputs of its own row: never on
// how many rows a call has. Each level has its own sequence.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "forerun/packed.h"

namespace forerun {

enum class Epilogue {
  kStore,    // c[row][n] = y
  kAdd,      // c[row][n] += y
  kSiluMul,  // act[row][n] = silu(y of gate n) * (y of up n); gate and up blocks alternate
  kArgmax,   // best[row], best_id[row]: the largest y, the lowest id among equals
};

// y[rows, n] = a[rows, k] * w[n, k]^T + bias for the blocks [block_begin, block_end) of w.
struct Gemm {
  const void* a;           // activations, Kernels::act_bytes an element
  std::size_t lda;         // elements between rows of a
  int rows;                // at least 1
  const std::uint16_t* w;  // packed blocks of bfloat16
  int k;                   // even
  int block_begin;         // even, for kSiluMul
  int block_end;           // even, for kSiluMul
  const float* bias;       // [n] or null
  Epilogue epilogue;
  float* c;               // kStore, kAdd
  std::size_t ldc;        // elements between rows of c
  void* act;              // kSiluMul: activations out
  std::size_t ld_act;     // elements between rows of act
  float* best;            // kArgmax: [rows]
  std::int32_t* best_id;  // kArgmax: [rows]
  int id_limit;           // kArgmax: outputs from here on are left out
};

// Gives g a thread's share of a product with n outputs: pairs of blocks, so that
// gate and up stay together. It may be empty.
inline void share_blocks(Gemm& g, int n, int thread, int threads) {
  const int blocks = (n + kLanes - 1) / kLanes;
  const long long pairs = (blocks + 1) / 2;
  g.block_begin = static_cast<int>(pairs * thread / threads) * 2;
  g.block_end = std::min(blocks, static_cast<int>(pairs * (thread + 1) / threads) * 2);
}

// c[rows, 16 * num_blocks] = a[rows, k] * blocks, in the precision of the KV cache.
// On tiles `a` is rounded to bfloat16.
struct Panel {
  const float* a;
  std::size_t lda;
  int rows;
  const void* const* blocks;  // [num_blocks]
  int num_blocks;
  int k;
  float* c;
  std::size_t ldc;
  // Bytes from each block to as many that are read when the panel is done; 0: none are known.
  std::ptrdiff_t to_next;
};

// o[rows, d] += p[rows, keys] * v for consecutive keys of which the first stands at
// a multiple of Kernels::value_step. They are added in order, a step at once, so it
// makes no difference at which of those multiples the keys are cut into calls. On
// tiles p is rounded to bfloat16.
struct ValueRows {
  const float* p;
  std::size_t ldp;
  int rows;
  const void* const* units;   // [keys]: the value unit that holds the key
  const std::int32_t* lanes;  // [keys]: its token within the unit, 0..15
  int keys;
  int d;
  float* o;
  std::size_t ldo;
};

// Turns scores into weights in place: s[i] = exp(t(s[i] * scale) - max), where
// t(x) is cap * tanh(x / cap) with a cap and x without one; the first `hidden`
// scores get weight 0. Returns the maximum and the sum; no key visible: sum 0.
struct Softmax {
  float* s;
  int n;
  int hidden;
  float scale;
  float cap;  // 0: none
  float max;  // out
  float sum;  // out
};

struct Kernels {
  const char* name;
  std::size_t act_bytes;  // 4: float32, 2: bfloat16
  int spare_rows;         // rows of `a` behind the last that must be readable, whatever they hold

  void (*gemm)(const Gemm&);
  void (*panel)(const Panel&);
  void (*value_rows)(const ValueRows&);
  void (*softmax)(Softmax&);
  // out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; n a multiple of 16; out may be x.
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
  // Rotates the halves of a head of d elements; cos and sin have d / 2 each.
  void (*rope)(float* x, const float* cos, const float* sin, int d);
  // Rounds to the precision of activations.
  void (*to_act)(const float* x, int n, void* act);
  // Rounds to the precision of keys and values, in float32.
  void (*to_kv)(const float* x, int n, void* out);
  // Once on each thread before and after its work.
  void (*thread_begin)();
  void (*thread_end)();
  int group;            // blocks that are best computed at once; even
  int value_step = 16;  // see ValueRows; a power of two, at most 256
};

// The levels, each in its own translation unit. `bf16` chooses the precision
// of activations and KV; null where the compiler could not build the level.
const Kernels* kernels_scalar(bool bf16);
const Kernels* kernels_avx2(bool bf16);
const Kernels* kernels_avx512(bool bf16);
const Kernels* kernels_avx512_bf16(bool bf16);
const Kernels* kernels_amx(bool bf16);

}  // namespace forerun
