// Times products of weights and attention by number of rows, at the shapes of
// Llama-3.1-8B, and prints JSON.
//
// usage: kernel_time LEVEL THREADS
// Each kind of work is timed in turn, round after round; a figure is the median.
// The weights of a product are more than caches hold, and no call finds those of
// the one before it: it takes the next of several matrices.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "forerun/attention.h"
#include "forerun/isa.h"
#include "forerun/memory.h"
#include "forerun/thread_pool.h"

namespace forerun {
namespace {

constexpr int kRounds = 9;
constexpr int kDepth = 4096, kOutputs = 14336, kMatrices = 4;
constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kPage = 32;
constexpr int kRowCounts[] = {1, 2, 4, 8, 16, 24, 32, 64, 128, 256};
constexpr int kNodeCounts[] = {1, 4, 16, 64};
constexpr int kContexts[] = {512, 2048};

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Timed {
  std::string name;  // of its figure, with what it did
  double flop, bytes;
  std::function<void()> run;
  std::vector<double> seconds;
};

class GemmWork {
 public:
  GemmWork(const Kernels& kernels, ThreadPool& pool)
      : kernels_(kernels), pool_(pool), weights_(kMatrices * kMatrixValues * 2) {
    constexpr int most = 256;
    input_.resize((most + kernels.spare_rows) * std::size_t{kDepth} * kernels.act_bytes);
    out_.resize(std::size_t{most} * kOutputs);
    const std::vector<float> row(kDepth, 0.5f);
    for (int r = 0; r < most; ++r)
      kernels.to_act(row.data(), kDepth, input_.data() + r * kDepth * kernels.act_bytes);
    // Written by the threads that read them, so that each finds them in its own memory.
    pool.run([&](int thread) {
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        auto* w = weights_.as<std::uint16_t>() + matrix * kMatrixValues;
        std::fill(w + first_block(thread) * kBlockValues,
                  w + first_block(thread + 1) * kBlockValues, std::uint16_t{0x3c00});
      }
    });
  }

  void run(int rows) {
    const auto* w = weights_.as<std::uint16_t>() + next_ * kMatrixValues;
    next_ = (next_ + 1) % kMatrices;
    pool_.run([&](int thread) {
      kernels_.gemm({input_.data(), kDepth, rows, w, kDepth, static_cast<int>(first_block(thread)),
                     static_cast<int>(first_block(thread + 1)), nullptr, Epilogue::kStore,
                     out_.data(), kOutputs, nullptr, 0, nullptr, nullptr, kOutputs});
    });
  }

  static constexpr std::size_t kBlockValues = std::size_t{kLanes} * kDepth;
  static constexpr std::size_t kMatrixValues = std::size_t{kOutputs} * kDepth;

 private:
  std::size_t first_block(int thread) const {
    return std::size_t{kOutputs / kLanes} * thread / pool_.size() / 2 * 2;
  }

  const Kernels& kernels_;
  ThreadPool& pool_;
  HugeBuffer weights_;
  std::vector<unsigned char> input_;
  std::vector<float> out_;
  int next_ = 0;
};

// Nodes of a tree that branches in two, behind `context` committed tokens.
class AttentionWork {
 public:
  AttentionWork(const Kernels& kernels, ThreadPool& pool, int context, int nodes)
      : pool_(pool),
        cache_({1, kKvHeads, kHeadDim, kPage, (context + nodes) / kPage + 1, true}),
        attention_(kernels, cache_, {kHeads, 0.088f, 0, 0}, pool.size()),
        query_(static_cast<std::size_t>(nodes) * kWidth),
        out_(query_.size()) {
    Random random(1);
    for (float& q : query_) q = random.next();
    std::vector<float> token(kHeadDim);
    for (int page = 0; page < cache_.geometry().pages; ++page) pages_.push_back(page);
    for (int slot = 0; slot < context + nodes; ++slot) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (float& x : token) x = random.next();
        cache_.write(0, slot, head, token.data(), token.data());
      }
    }
    for (int node = 0; node < nodes; ++node) {
      paths_.push_back(node > 0 ? paths_[(node - 1) / 2] : std::vector<std::int32_t>{});
      paths_.back().push_back(node);
    }
    for (const auto& path : paths_)
      rows_.push_back({0, context + static_cast<int>(path.size()) - 1, path.data()});
    sequences_.push_back({context, 0, nodes, pages_.data()});
  }

  void run() {
    attention_.plan(sequences_, rows_);
    pool_.run([&](int thread) {
      attention_.compute(0, thread, query_.data(), kWidth);
      pool_.barrier();
      attention_.merge_float(thread, out_.data(), kWidth);
    });
  }

 private:
  static constexpr std::size_t kWidth = std::size_t{kHeads} * kHeadDim;
  ThreadPool& pool_;
  KvCache cache_;
  Attention attention_;
  std::vector<std::int32_t> pages_;
  std::vector<std::vector<std::int32_t>> paths_;
  std::vector<AttentionSequence> sequences_;
  std::vector<AttentionRow> rows_;
  std::vector<float> query_, out_;
};

void print(const char* title, std::vector<Timed>& all, bool last) {
  std::printf("  \"%s\": [\n", title);
  for (std::size_t i = 0; i < all.size(); ++i) {
    Timed& t = all[i];
    std::sort(t.seconds.begin(), t.seconds.end());
    const double median = t.seconds[t.seconds.size() / 2];
    std::printf("    {%s, \"us\": %.1f, \"gflop_per_s\": %.1f, \"gb_per_s\": %.2f}%s\n",
                t.name.c_str(), median * 1e6, t.flop / median / 1e9, t.bytes / median / 1e9,
                i + 1 < all.size() ? "," : "");
  }
  std::printf("  ]%s\n", last ? "" : ",");
}

void measure(const std::string& level, int threads) {
  select_isa(detect_cpu(), level);
  const Kernels& kernels = *kernels_for(level, true);
  ThreadPool pool(threads, {}, kernels.thread_begin, kernels.thread_end);
  GemmWork gemm(kernels, pool);
  std::vector<Timed> gemms, attentions;
  for (const int rows : kRowCounts) {
    const double weights = static_cast<double>(GemmWork::kMatrixValues);
    gemms.push_back({"\"rows\": " + std::to_string(rows),
                     2 * rows * weights,
                     2 * weights,
                     [&gemm, rows] { gemm.run(rows); },
                     {}});
  }
  for (const int context : kContexts) {
    for (const int nodes : kNodeCounts) {
      const auto work = std::make_shared<AttentionWork>(kernels, pool, context, nodes);
      const double pairs = static_cast<double>(nodes) * context * kHeads * kHeadDim;
      attentions.push_back(
          {"\"context\": " + std::to_string(context) + ", \"nodes\": " + std::to_string(nodes),
           4 * pairs,
           4.0 * context * kKvHeads * kHeadDim,
           [work] { work->run(); },
           {}});
    }
  }
  for (int round = -1; round < kRounds; ++round) {
    for (std::vector<Timed>* all : {&gemms, &attentions}) {
      for (Timed& t : *all) {
        const double took = seconds(t.run);
        if (round >= 0) t.seconds.push_back(took);  // the first warms up
      }
    }
  }
  std::printf("{\n  \"isa\": \"%s\", \"threads\": %d, \"rounds\": %d,\n", level.c_str(), threads,
              kRounds);
  std::printf("  \"gemm_shape\": [%d, %d],\n", kOutputs, kDepth);
  print("gemm", gemms, false);
  print("attention", attentions, true);
  std::printf("}\n");
}

}  // namespace
}  // namespace forerun

int main(int argc, char** argv) {
  if (argc != 3 || std::atoi(argv[2]) < 1) {
    std::fprintf(stderr, "usage: kernel_time LEVEL THREADS\n");
    return 2;
  }
  try {
    forerun::measure(argv[1], std::atoi(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_time: %s\n", error.what());
    return 1;
  }
  return 0;
}
