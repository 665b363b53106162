#include "attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "forerun/packed.h"

namespace forerun {
namespace {

constexpr int kRange = 256;
// More than float32 loses in a score and in its exponential.
constexpr double kWeightError = 2e-5;

double score(const ReferenceRow& row, int position) {
  double dot = 0;
  for (int i = 0; i < row.d; ++i) dot += double{row.q[i]} * row.keys[position][i];
  dot *= row.scale;
  return row.cap > 0 ? row.cap * std::tanh(dot / row.cap) : dot;
}

double rounded(double weight) { return round_to_bf16(static_cast<float>(weight)); }

}  // namespace

void attention_reference(const ReferenceRow& row, std::vector<double>& out,
                         std::vector<double>& slack) {
  const int seen = static_cast<int>(row.keys.size());
  const int first = row.window > 0 ? std::max(0, seen - row.window) : 0;
  std::vector<double> scores(seen);
  for (int p = first; p < seen; ++p) scores[p] = score(row, p);
  const double max = *std::max_element(scores.begin() + first, scores.end());
  double sum = 0;
  out.assign(row.d, 0);
  slack.assign(row.d, 0);
  for (int start = first / kRange * kRange; start < seen; start += kRange) {
    const int from = std::max(first, start), to = std::min(seen, start + kRange);
    const double top = *std::max_element(scores.begin() + from, scores.begin() + to);
    const double share = std::exp(top - max);
    for (int p = from; p < to; ++p) {
      const double exact = std::exp(scores[p] - top);
      const double weight = row.rounds_weights ? rounded(exact) : exact;
      const double doubt = row.rounds_weights ? rounded(exact * (1 + kWeightError)) -
                                                    rounded(exact * (1 - kWeightError))
                                              : 0;
      sum += exact * share;
      for (int i = 0; i < row.d; ++i) {
        out[i] += weight * share * row.values[p][i];
        slack[i] += doubt * share * std::fabs(row.values[p][i]);
      }
    }
  }
  for (int i = 0; i < row.d; ++i) {
    out[i] /= sum;
    slack[i] /= sum;
  }
}

}  // namespace forerun
