// Matrix products: all epilogues, odd depths, partial tiles and block ranges.
#include <limits>

#include "cases.h"
#include "forerun/packed.h"

namespace forerun {
namespace {

constexpr int kMaxRows = 70, kBlocks = 12, kOutputs = kBlocks * kLanes;
constexpr int kRowCounts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                              12, 13, 16, 17, 31, 32, 33, 64, 65, 70};

struct Problem {
  int k;
  std::vector<float> input;  // [kMaxRows, k]
  std::vector<std::uint16_t> weights, faulty;
  std::vector<float> bias;
};

struct Range {
  int begin, end;
};

// All that a call may write, for `rows` rows and one more that must stay as it was.
struct Outputs {
  explicit Outputs(const Kernels& kernels, int rows)
      : c(kOutputs * (rows + 1)),
        act(kOutputs * kernels.act_bytes * (rows + 1), 0x3f),
        best(rows + 1, -std::numeric_limits<float>::infinity()),
        best_id(rows + 1, -1) {
    for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i % kOutputs) / kOutputs;
  }
  std::vector<float> c;
  std::vector<unsigned char> act;
  std::vector<float> best;
  std::vector<std::int32_t> best_id;
};

bool same_row(const Outputs& a, int row_a, const Outputs& b, int row_b) {
  const std::size_t act_row = a.act.size() / a.best.size();
  return same_bits(&a.c[row_a * kOutputs], &b.c[row_b * kOutputs], kOutputs * sizeof(float)) &&
         same_bits(&a.act[row_a * act_row], &b.act[row_b * act_row], act_row) &&
         same_bits(&a.best[row_a], &b.best[row_b], sizeof(float)) &&
         a.best_id[row_a] == b.best_id[row_b];
}

Problem make_problem(int k) {
  Random random(static_cast<std::uint32_t>(k));
  Problem p{k, random.floats(static_cast<std::size_t>(kMaxRows) * k), {}, {}, {}};
  p.weights.resize(static_cast<std::size_t>(kOutputs) * k);
  std::vector<std::uint16_t> row(k);
  for (int n = 0; n < kOutputs; ++n) {
    // Some rows repeat the one before, so that the argmax has equals to choose from.
    if (n % 5 != 4) {
      for (std::uint16_t& w : row) w = float_to_bf16(random.next());
    }
    pack_row(row.data(), k, n % kLanes,
             p.weights.data() + static_cast<std::size_t>(n / kLanes) * kLanes * k);
  }
  p.bias = random.floats(kOutputs);
  for (int n = 4; n < kOutputs; n += 5) p.bias[n] = p.bias[n - 1];
  p.faulty = p.weights;
  std::uint16_t* pair = p.faulty.data() + std::size_t{5} * kLanes * k + bf16_block_index(3, k - 2);
  std::swap(pair[0], pair[1]);
  return p;
}

// Rows [first, first + rows) of the problem; the spare rows hold NaN.
Outputs multiply(const Kernels& kernels, const Problem& p, const std::vector<std::uint16_t>& w,
                 int first, int rows, Epilogue epilogue, bool bias, Range range) {
  const std::size_t lda = p.k + 16, bytes = lda * kernels.act_bytes;
  std::vector<unsigned char> a((rows + kernels.spare_rows) * bytes, 0xff);
  for (int row = 0; row < rows; ++row) {
    kernels.to_act(p.input.data() + static_cast<std::size_t>(first + row) * p.k, p.k,
                   a.data() + row * bytes);
  }
  Outputs out(kernels, rows);
  kernels.gemm({a.data(), lda, rows, w.data(), p.k, range.begin, range.end,
                bias ? p.bias.data() : nullptr, epilogue, out.c.data(), kOutputs, out.act.data(),
                kOutputs, out.best.data(), out.best_id.data(), kOutputs - 21});
  return out;
}

bool agrees(const Level& level, Epilogue epilogue, int k, const Outputs& mine,
            const Outputs& scalar) {
  // A sum of k products of numbers below 1, in another order.
  const float tolerance = 2e-6f * static_cast<float>(k);
  switch (epilogue) {
    case Epilogue::kStore:
    case Epilogue::kAdd:
      return close(mine.c.data(), scalar.c.data(), kOutputs, tolerance);
    case Epilogue::kSiluMul: {
      const std::vector<float> a = act_floats(level.kernels, mine.act.data(), kOutputs / 2);
      const std::vector<float> b = act_floats(level.scalar, scalar.act.data(), kOutputs / 2);
      return close(a.data(), b.data(), a.size(), tolerance * 30, level.bf16 ? 1.0f / 128 : 1e-5f);
    }
    case Epilogue::kArgmax:
      return close(mine.best.data(), scalar.best.data(), 1, tolerance);
  }
  return false;
}

// The argmax must be that of the outputs that the level itself would have stored.
bool is_argmax(const Outputs& found, const Outputs& stored, Range range) {
  float best = -std::numeric_limits<float>::infinity();
  int id = -1;
  for (int n = range.begin * kLanes; n < range.end * kLanes && n < kOutputs - 21; ++n) {
    if (stored.c[n] > best) {
      best = stored.c[n];
      id = n;
    }
  }
  return found.best[0] == best && found.best_id[0] == id;
}

void epilogue_cases(const Level& level, const Problem& p, Epilogue epilogue, bool bias, Range range,
                    Report& report) {
  static const char* const names[] = {"store", "add", "silu", "argmax"};
  const std::string what = level.name + " gemm " + names[static_cast<int>(epilogue)] +
                           " k=" + std::to_string(p.k) + " blocks=" + std::to_string(range.begin) +
                           ".." + std::to_string(range.end) + (bias ? " bias" : "");
  const auto& weights = level.plant == Plant::kWeights ? p.faulty : p.weights;
  std::vector<Outputs> alone;
  for (int row = 0; row < kMaxRows; ++row) {
    alone.push_back(multiply(level.kernels, p, weights, row, 1, epilogue, bias, range));
    const std::string where = what + " row=" + std::to_string(row);
    // All rows are compared with one another below; few suffice against scalar.
    if (row % 9 != 0) continue;
    const Outputs scalar = multiply(level.scalar, p, p.weights, row, 1, epilogue, bias, range);
    report.check(agrees(level, epilogue, p.k, alone[row], scalar), where + ": differs from scalar");
    if (epilogue != Epilogue::kArgmax) continue;
    const Outputs stored =
        multiply(level.kernels, p, weights, row, 1, Epilogue::kStore, bias, range);
    report.check(is_argmax(alone[row], stored, range), where + ": not the lowest of the largest");
  }
  const Outputs untouched(level.kernels, 0);
  for (const int rows : kRowCounts) {
    // The last rows, so that a row stands at another place in each call.
    const int first = kMaxRows - rows;
    const Outputs out = multiply(level.kernels, p, weights, first, rows, epilogue, bias, range);
    bool same = same_row(out, rows, untouched, 0);
    for (int row = 0; row < rows; ++row) same &= same_row(out, row, alone[first + row], 0);
    report.check(same, what + " rows=" + std::to_string(rows) + ": differs from rows alone");
  }
}

}  // namespace

void gemm_cases(const Level& level, Report& report) {
  for (const int k : {32, 48, 64, 576}) {
    const Problem p = make_problem(k);
    // All blocks at the greatest depth would take an emulator minutes.
    const int limit = k > 64 ? 6 : kBlocks;
    for (const Range range : {Range{0, 11}, Range{3, 8}, Range{5, 6}}) {
      if (range.end - range.begin > limit) continue;
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kArgmax}) {
        epilogue_cases(level, p, epilogue, range.begin == 3, range, report);
      }
    }
    for (const Range range : {Range{0, 12}, Range{2, 8}, Range{4, 6}}) {
      if (range.end - range.begin > limit) continue;
      epilogue_cases(level, p, Epilogue::kSiluMul, range.begin == 2, range, report);
    }
  }
}

}  // namespace forerun
