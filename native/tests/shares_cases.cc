// A product shared out among threads: every block once, whoever computes it.
#include <algorithm>
#include <limits>

#include "cases.h"
#include "forerun/block_shares.h"
#include "forerun/packed.h"
#include "forerun/thread_pool.h"

namespace forerun {
namespace {

constexpr int kDepth = 32, kBlocks = 41, kOutputs = kBlocks * kLanes, kProducts = 20;

struct Problem {
  std::vector<unsigned char> input;
  std::vector<std::uint16_t> weights;
};

Problem make_problem(const Kernels& kernels) {
  Random random(kDepth);
  const std::size_t row_bytes = kDepth * kernels.act_bytes;
  Problem p{std::vector<unsigned char>((1 + kernels.spare_rows) * row_bytes),
            std::vector<std::uint16_t>(kOutputs * kDepth)};
  kernels.to_act(random.floats(kDepth).data(), kDepth, p.input.data());
  std::vector<std::uint16_t> row(kDepth);
  for (int n = 0; n < kOutputs; ++n) {
    // Every output is there five times, in blocks far apart, for the argmax to choose from.
    Random weights(n % (kOutputs / 5) + 1);
    for (std::uint16_t& w : row) w = float_to_bf16(weights.next());
    pack_row(row.data(), kDepth, n % kLanes,
             p.weights.data() + static_cast<std::size_t>(n / kLanes) * kLanes * kDepth);
  }
  return p;
}

Gemm product(const Problem& p, Epilogue epilogue) {
  Gemm g{};
  g.a = p.input.data();
  g.lda = kDepth;
  g.rows = 1;
  g.w = p.weights.data();
  g.k = kDepth;
  g.epilogue = epilogue;
  g.block_end = kBlocks;
  g.ldc = g.id_limit = kOutputs;
  return g;
}

// A block left out, or computed twice, shows in a sum of products.
void sums(const Level& level, const Problem& p, int threads, Report& report) {
  std::vector<float> alone(kOutputs), shared(kOutputs);
  Gemm g = product(p, Epilogue::kAdd);
  g.c = alone.data();
  for (int i = 0; i < kProducts; ++i) level.kernels.gemm(g);
  g.c = shared.data();
  BlockShares shares(threads);
  if (level.rounds_weights()) {
    // An emulated processor's system gives tiles to the first thread alone, which takes
    // the parts of all in turn.
    for (int i = 0; i < kProducts; ++i) {
      for (int t = 0; t < threads; ++t)
        shares.compute((i + t) % threads, g, kOutputs, level.kernels);
    }
  } else {
    ThreadPool pool(threads, {}, level.kernels.thread_begin, level.kernels.thread_end);
    pool.run([&](int thread) {
      for (int i = 0; i < kProducts; ++i) {
        shares.compute(thread, g, kOutputs, level.kernels);
        pool.barrier();
      }
    });
  }
  report.check(same_bits(alone, shared),
               level.name + " product shared by " + std::to_string(threads) + ": not as alone");
}

// Whoever helps others comes to low ids after high ones.
void argmax_in_any_order(const Level& level, const Problem& p, Report& report) {
  std::int32_t ids[2];
  for (const bool backwards : {false, true}) {
    float best = -std::numeric_limits<float>::infinity();
    Gemm g = product(p, Epilogue::kArgmax);
    g.best = &best;
    g.best_id = &ids[backwards];
    ids[backwards] = 0;
    for (int i = 0; i < kBlocks; ++i) {
      g.block_begin = backwards ? kBlocks - 1 - i : i;
      g.block_end = g.block_begin + 1;
      level.kernels.gemm(g);
    }
  }
  report.check(ids[0] == ids[1] && ids[0] < kOutputs / 5,
               level.name + " argmax of blocks in turn: not the lowest of the largest");
}

}  // namespace

void shares_cases(const Level& level, Report& report) {
  const Problem p = make_problem(level.kernels);
  for (const int threads : {1, 2, 3, 6}) sums(level, p, threads, report);
  argmax_in_any_order(level, p, report);
}

}  // namespace forerun
