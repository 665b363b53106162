// What the cases of kernel_test share: the level under test, the count of
// checks, and numbers that are the same in every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "forerun/kernels.h"
#include "forerun/packed.h"

namespace forerun {

// A fault put in on purpose, to see that the cases would notice it.
enum class Plant {
  kNone,
  kWeights,  // the two values of one packed pair of weights change places
  kKeys,     // the two values of one packed pair of a key change places
  kValues,   // values of two tokens that share a packed pair change places
  kPrefix,   // attention takes the prefix of a tree for one token shorter
};

class Report {
 public:
  explicit Report(bool quiet) : quiet_(quiet) {}
  // Prints `what` if the check failed.
  void check(bool holds, const std::string& what);
  int passed() const { return passed_; }
  int failed() const { return failed_; }

 private:
  bool quiet_;
  int passed_ = 0, failed_ = 0;
};

// One level in one precision, and the scalar kernels that it must agree with.
struct Level {
  std::string name;
  bool bf16;
  const Kernels& kernels;
  const Kernels& scalar;
  Plant plant;

  // Whether attention rounds its weights to bfloat16: tiles take nothing else.
  bool rounds_weights() const { return kernels.value_step > kLanes; }
};

void gemm_cases(const Level& level, Report& report);
void elementwise_cases(const Level& level, Report& report);  // softmax, norm, rope, activations
void panel_cases(const Level& level, Report& report);        // panel, value_rows
void shares_cases(const Level& level, Report& report);       // products shared by threads
void attention_cases(const Level& level, Report& report);
// One of `of` cases of the grid of prefixes, new rows, heads and page sizes, a thousand in all.
void attention_grid(const Level& level, int of, Report& report);

// Uniform numbers in [-1, 1).
class Random {
 public:
  explicit Random(std::uint32_t seed) : state_(seed * 2654435761u + 1) {}
  std::uint32_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
  }
  float next() { return static_cast<float>(bits() >> 8) / (1 << 23) - 1.0f; }
  int below(int limit) { return static_cast<int>(bits() % static_cast<std::uint32_t>(limit)); }
  std::vector<float> floats(std::size_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = next();
    return values;
  }

 private:
  std::uint32_t state_;
};

inline bool same_bits(const void* a, const void* b, std::size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size() * sizeof(T));
}

// Whether |a - b| <= absolute + relative * |b| for all n, and NaN nowhere.
bool close(const float* a, const float* b, std::size_t n, float absolute, float relative = 0);

// Activations as floats.
std::vector<float> act_floats(const Kernels& kernels, const void* act, std::size_t n);

}  // namespace forerun
