// Softmax, norm, rotation and the rounding of activations.
#include <cmath>
#include <limits>

#include "cases.h"
#include "forerun/packed.h"

namespace forerun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void softmax_case(const Level& level, int n, int hidden, float cap, Report& report) {
  Random random(static_cast<std::uint32_t>(n * 100 + hidden));
  std::vector<float> scores = random.floats(n + 1);
  for (float& s : scores) s *= 40;
  scores[n / 2] = -3000;  // its weight underflows
  // What is hidden may never have been computed.
  for (int i = 0; i < hidden && i < n; ++i) scores[i] = std::nanf("");
  std::vector<float> mine = scores, scalar = scores;
  Softmax a{mine.data(), n, hidden, 0.25f, cap, 0, 0}, b = a;
  b.s = scalar.data();
  level.kernels.softmax(a);
  level.scalar.softmax(b);
  const std::string what = level.name + " softmax n=" + std::to_string(n) +
                           " hidden=" + std::to_string(hidden) + " cap=" + std::to_string(cap);
  report.check(mine[n] == scores[n], what + ": wrote behind the scores");
  report.check(a.max == b.max, what + ": the maximum differs from scalar");
  report.check(close(&a.sum, &b.sum, 1, 0, 1e-6f), what + ": the sum differs from scalar");
  if (hidden >= n) return;
  report.check(close(mine.data(), scalar.data(), n, 1e-30f, 1e-6f),
               what + ": a weight differs from scalar");
  bool zero = true;
  for (int i = 0; i < hidden; ++i) zero &= mine[i] == 0;
  report.check(zero, what + ": a hidden score has weight");
}

void norm_case(const Level& level, int n, Report& report) {
  Random random(static_cast<std::uint32_t>(n));
  const std::vector<float> x = random.floats(n), weight = random.floats(n);
  std::vector<float> mine(n), scalar(n), in_place = x;
  level.kernels.rms_norm(x.data(), weight.data(), n, 1e-5f, mine.data());
  level.scalar.rms_norm(x.data(), weight.data(), n, 1e-5f, scalar.data());
  level.kernels.rms_norm(in_place.data(), weight.data(), n, 1e-5f, in_place.data());
  const std::string what = level.name + " rms_norm n=" + std::to_string(n);
  report.check(close(mine.data(), scalar.data(), n, 1e-7f, 1e-5f), what + ": differs from scalar");
  report.check(same_bits(mine, in_place), what + ": differs in place");
}

void rope_case(const Level& level, int d, Report& report) {
  Random random(static_cast<std::uint32_t>(d));
  const std::vector<float> x = random.floats(d + 1), angles = random.floats(d / 2);
  std::vector<float> cos, sin, mine = x, scalar = x;
  for (const float angle : angles) {
    cos.push_back(std::cos(3 * angle));
    sin.push_back(std::sin(3 * angle));
  }
  level.kernels.rope(mine.data(), cos.data(), sin.data(), d);
  level.scalar.rope(scalar.data(), cos.data(), sin.data(), d);
  report.check(close(mine.data(), scalar.data(), d, 1e-6f) && mine[d] == x[d],
               level.name + " rope d=" + std::to_string(d) + ": differs from scalar");
}

float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

void act_case(const Level& level, int n, Report& report) {
  Random random(static_cast<std::uint32_t>(n));
  std::vector<float> x = random.floats(n);
  const float special[] = {0.0f,
                           -0.0f,
                           float_of(0x3f808000),  // halfway, to even below
                           float_of(0x3f818000),  // halfway, to even above
                           float_of(0x3f807fff),
                           float_of(0xbf808001),
                           float_of(0x7f7fffff),  // rounds to infinity
                           float_of(0x00000001),  // denormal
                           float_of(0x00418000),
                           kInfinity,
                           -kInfinity,
                           float_of(0x7fc00000),   // NaN
                           float_of(0x7f800001),   // NaN in the low bits alone
                           float_of(0xffffffff)};  // NaN that rounding would carry to zero
  for (std::size_t i = 0; i < std::size(special); ++i) x[i] = special[i];
  std::vector<unsigned char> a((n + 1) * level.kernels.act_bytes, 0x3f);
  std::vector<unsigned char> b((n + 1) * level.scalar.act_bytes, 0x3f);
  level.kernels.to_act(x.data(), n, a.data());
  level.scalar.to_act(x.data(), n, b.data());
  const std::vector<float> mine = act_floats(level.kernels, a.data(), n);
  const std::vector<float> scalar = act_floats(level.scalar, b.data(), n);
  bool same = a.back() == 0x3f;
  for (int i = 0; i < n; ++i) {
    same &= std::isnan(scalar[i]) ? std::isnan(mine[i])
                                  : same_bits(&mine[i], &scalar[i], sizeof mine[i]);
  }
  report.check(same, level.name + " to_act n=" + std::to_string(n) + ": differs from scalar");
}

}  // namespace

void elementwise_cases(const Level& level, Report& report) {
  for (int n = 1; n <= 70; ++n) {
    for (const int hidden : {0, 1, n / 2, n - 1, n}) {
      softmax_case(level, n, hidden, 0, report);
      softmax_case(level, n, hidden, 5, report);
    }
  }
  softmax_case(level, 256, 17, 0, report);
  for (const int n : {16, 48, 64, 576}) norm_case(level, n, report);
  for (const int d : {16, 32, 48, 64, 96, 128}) rope_case(level, d, report);
  for (const int n : {16, 48, 64, 576}) act_case(level, n, report);
}

}  // namespace forerun
