// The one packed layout of weights, keys and values, and bfloat16 conversion.
//
// A *block* is 16 outputs over a depth of k inputs, stored so that one step of
// the depth is one row of 16 lanes:
//   bfloat16  [k / 2][16][2]   two steps of the depth a row, 64 bytes
//   float32   [k][16]          one step of the depth a row, 64 bytes
// A weight matrix W[n, k] is n / 16 blocks, its rows being outputs. A *unit* of
// 16 cached tokens is one block of keys (outputs: tokens, depth: head_dim) and
// head_dim / 16 blocks of values (outputs: head_dim, depth: tokens). The
// bfloat16 block is also what one AMX tile of operand B holds for 32 steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace forerun {

inline constexpr int kLanes = 16;  // outputs of a block, tokens of a unit

inline float bf16_to_float(std::uint16_t bits) {
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// Rounds to nearest even; NaN stays NaN.
inline std::uint16_t float_to_bf16(float value) {
  std::uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((word >> 16) | 0x40u);
  return static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

inline float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

// Index within a bfloat16 block of output `lane` at step `k`.
inline std::size_t bf16_block_index(int lane, int k) {
  return (static_cast<std::size_t>(k) / 2 * kLanes + lane) * 2 + (k & 1);
}

// Index within a float32 block of output `lane` at step `k`.
inline std::size_t f32_block_index(int lane, int k) {
  return static_cast<std::size_t>(k) * kLanes + lane;
}

inline int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Packs row `row` of a matrix, k bfloat16 values (k even), into its lane of the block.
inline void pack_row(const std::uint16_t* row, int k, int lane, std::uint16_t* block) {
  for (int i = 0; i < k; i += 2) {
    std::memcpy(block + (static_cast<std::size_t>(i) / 2 * kLanes + lane) * 2, row + i, 4);
  }
}

}  // namespace forerun
