// Runs a whole model at one level and holds it against itself and another level.
//
// usage: model_test FILE [--level NAME] [--against NAME] [--tokens N] [--plants]
// FILE is what write_model.py writes. At the level: plain decoding of N tokens; a
// tree that holds those tokens among others, verified in one forward over a cache
// that was filled in other chunks and pages; its predictions, hidden states, the
// deepest node's logits, and committed keys and values must be those of plain
// decoding, bit for bit. Against the other level: hidden states must be close,
// and ids the same up to the first near-tie. --plants: afterwards plants faults
// that this must notice. Exits with 0 if all checks passed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "forerun/forward.h"
#include "forerun/isa.h"
#include "model_file.h"

namespace forerun {
namespace {

// Logits of two levels differ by what bfloat16 activations lose; ids may differ
// where the two best logits are closer than this.
constexpr double kNearTie = 0.25;
// Relative distance of the final hidden states of two levels.
constexpr double kHiddenDistance = 0.03;

struct Options {
  std::string file, level = "amx", against = "avx512_bf16";
  int tokens = 6;
  bool plants = false;
};

class Checks {
 public:
  explicit Checks(bool quiet) : quiet_(quiet) {}
  void check(bool holds, const std::string& what) {
    ++(holds ? passed_ : failed_);
    if (!holds && !quiet_) std::printf("FAILED %s\n", what.c_str());
  }
  int passed() const { return passed_; }
  int failed() const { return failed_; }

 private:
  bool quiet_;
  int passed_ = 0, failed_ = 0;
};

// One sequence in an engine of its own, and what its last forward gave.
class Run {
 public:
  Run(const ModelFile& file, const std::string& isa, int page_size)
      : file_(file),
        page_size_(page_size),
        engine_(file.model,
                {true,
                 page_size,
                 (file.max_context + page_size - 1) / page_size,
                 file.max_context,
                 file.max_context,
                 1,
                 {},
                 isa},
                file.cos.data(), file.sin.data()) {
    // Backwards, so that storage order is not the order of positions.
    for (int page = engine_.config().pages - 1; page >= 0; --page) pages_.push_back(page);
    for (int slot = 0; slot < engine_.config().pages * page_size; ++slot)
      engine_.cache().poison(slot);
  }

  // Runs new rows behind the first `prefix` tokens, and predicts those from `predicted` on.
  void forward(int prefix, const std::vector<std::int32_t>& tokens,
               const std::int32_t* parents = nullptr, int predicted = 0) {
    rows_ = static_cast<int>(tokens.size());
    first_ = predicted;
    engine_.forward({{prefix + rows_, rows_, pages_.data(), static_cast<int>(pages_.size()),
                      tokens.data(), parents, predicted}},
                    {file_.model->config().layers / 2, file_.model->config().layers}, out_);
  }
  // Predicts the last token alone, as a server does.
  void prefill(const std::vector<std::int32_t>& prompt, int chunk) {
    const int size = static_cast<int>(prompt.size());
    for (int from = 0; from < size; from += chunk) {
      const int to = std::min(from + chunk, size);
      forward(from, {prompt.begin() + from, prompt.begin() + to}, nullptr,
              to - from - (to == size ? 1 : 0));
    }
  }
  void keep(int prefix, const std::vector<std::int32_t>& rows) {
    engine_.compact(pages_.data(), static_cast<int>(pages_.size()), prefix, rows.data(),
                    static_cast<int>(rows.size()));
  }

  int rows() const { return rows_; }
  int prediction(int row) const { return out_.predictions[row - first_]; }
  // The residual stream in the middle and the final hidden state of a row.
  std::vector<std::uint16_t> hidden(int row) const {
    const std::size_t h = file_.model->config().hidden_size;
    std::vector<std::uint16_t> both;
    for (int tap = 0; tap < 2; ++tap) {
      const auto from = out_.hidden.begin() + (static_cast<std::size_t>(tap) * rows_ + row) * h;
      both.insert(both.end(), from, from + h);
    }
    return both;
  }
  // Logits of the predicted rows by one product, as the argmax sees them: [predicted, vocab].
  std::vector<float> logits() const {
    const Model& m = *file_.model;
    const Kernels& kernels = *kernels_for(engine_.config().isa, true);
    const int h = m.config().hidden_size, n = round_up(m.config().vocab_rows, kLanes);
    const int rows = rows_ - first_;
    std::vector<unsigned char> act((rows + kernels.spare_rows) * kernels.act_bytes * h);
    std::vector<float> row(h), c(static_cast<std::size_t>(rows) * n);
    for (int r = 0; r < rows; ++r) {
      const auto from = out_.hidden.begin() + (static_cast<std::size_t>(rows_) + first_ + r) * h;
      std::transform(from, from + h, row.begin(), bf16_to_float);
      kernels.to_act(row.data(), h, act.data() + r * kernels.act_bytes * h);
    }
    kernels.gemm({act.data(), static_cast<std::size_t>(h), rows, m.head(), h, 0, n / kLanes,
                  nullptr, Epilogue::kStore, c.data(), static_cast<std::size_t>(n), nullptr, 0,
                  nullptr, nullptr, m.config().vocab_size});
    return c;
  }
  // Keys and values of a cached token in all layers.
  std::vector<unsigned char> cached(int position) {
    const KvCache& cache = engine_.cache();
    const KvGeometry& g = cache.geometry();
    const int slot = cache.slot(pages_.data(), position);
    std::vector<unsigned char> bytes;
    for (int layer = 0; layer < g.layers; ++layer) {
      for (int i = 0; i < 2 * g.kv_heads * g.head_dim; ++i) {
        const auto* e = static_cast<const unsigned char*>(
            cache.element(layer, slot, i / 2 / g.head_dim, i / 2 % g.head_dim, i % 2 != 0));
        bytes.insert(bytes.end(), e, e + g.element_bytes());
      }
    }
    return bytes;
  }

 private:
  const ModelFile& file_;
  const int page_size_;
  Engine engine_;
  std::vector<std::int32_t> pages_;
  ForwardOut out_;
  int rows_ = 0, first_ = 0;  // of the last forward; the first predicted
};

// What a row of plain decoding gave. Logits are those of all ids, or empty: they
// follow from the final hidden state, and take an emulator as long as a step.
struct Step {
  int id;
  std::vector<std::uint16_t> hidden;
  std::vector<float> logits;
};

// The last row, which alone was predicted.
Step last_step(const Run& run, bool logits) {
  const int row = run.rows() - 1;
  return {run.prediction(row), run.hidden(row), logits ? run.logits() : std::vector<float>{}};
}

// The prompt's own next token, then `tokens` steps of one row each.
std::vector<Step> decode(Run& run, const std::vector<std::int32_t>& prompt, int tokens) {
  run.prefill(prompt, static_cast<int>(prompt.size()));
  std::vector<Step> steps{last_step(run, false)};
  for (int i = 0; i < tokens; ++i) {
    run.forward(static_cast<int>(prompt.size()) + i, {steps.back().id});
    steps.push_back(last_step(run, i == tokens - 1));
  }
  return steps;
}

void check_row(const Run& run, int row, const Step& plain, const std::string& what,
               Checks& checks) {
  checks.check(run.prediction(row) == plain.id, what + ": another id than plain decoding");
  checks.check(run.hidden(row) == plain.hidden, what + ": hidden states differ");
}

// The tree: the root, then at each depth a wrong node and the right one, the
// wrong ones with a child each.
void verify_tree(const ModelFile& file, const Options& options, Run& plain,
                 const std::vector<Step>& steps, Checks& checks) {
  const int prompt = static_cast<int>(file.prompt.size()), depth = options.tokens - 1;
  const int vocab = file.model->config().vocab_size;
  std::vector<std::int32_t> tokens{steps[0].id}, parents{-1}, path{0};
  std::vector<int> wrong;
  for (int d = 1; d <= depth; ++d) {
    const int parent = path.back(), next = static_cast<int>(tokens.size());
    wrong.push_back(next);
    path.push_back(next + 1);
    for (const int more : {1, 0, 2}) tokens.push_back((steps[d].id + more) % vocab);
    for (const int of : {parent, parent, next}) parents.push_back(of);
  }
  Run run(file, options.level, 16);
  run.prefill(file.prompt, 24);
  run.forward(prompt, tokens, parents.data());
  for (int d = 0; d <= depth; ++d)
    check_row(run, path[d], steps[d + 1], "tree, depth " + std::to_string(d), checks);

  const std::vector<float> logits = run.logits(), &alone = steps[depth + 1].logits;
  checks.check(std::equal(alone.begin(), alone.end(), logits.begin() + path[depth] * alone.size()),
               "logits of the deepest node");

  run.keep(prompt, path);
  for (int p = 0; p < prompt + depth + 1; ++p)
    checks.check(run.cached(p) == plain.cached(p), "KV of position " + std::to_string(p));

  // The last wrong node and its child, decoded plainly in place of the right one.
  const int node = wrong.back();
  plain.forward(prompt + depth, {tokens[node]});
  check_row(run, node, last_step(plain, false), "tree, wrong node", checks);
  plain.forward(prompt + depth + 1, {tokens[node + 2]});
  check_row(run, node + 2, last_step(plain, false), "tree, child of the wrong node", checks);
}

// A chain of the same tokens behind chunks and pages of other sizes. `prefix`: what
// the forward is told of the tokens before it.
void verify_chain(const ModelFile& file, const Options& options, int prefix, Run& plain,
                  const std::vector<Step>& steps, Checks& checks) {
  const int prompt = static_cast<int>(file.prompt.size());
  Run run(file, options.level, 5);
  run.prefill(file.prompt, 16);
  std::vector<std::int32_t> chain;
  for (int i = 0; i < options.tokens; ++i) chain.push_back(steps[i].id);
  run.forward(prefix, chain);
  for (int i = 0; i < options.tokens; ++i)
    check_row(run, i, steps[i + 1], "chain, row " + std::to_string(i), checks);
  for (int p = 0; p < prompt + options.tokens; ++p)
    checks.check(run.cached(p) == plain.cached(p),
                 "KV of position " + std::to_string(p) + " behind a chain in pages of 5");
}

double distance(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = a.size() / 2; i < a.size(); ++i) {
    const double x = bf16_to_float(a[i]), y = bf16_to_float(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

// The logit of one id from the final hidden state, the second half of `hidden`.
double logit(const Model& model, const std::vector<std::uint16_t>& hidden, int id) {
  const int h = model.config().hidden_size;
  const std::uint16_t* block = model.head() + static_cast<std::size_t>(id / kLanes) * kLanes * h;
  double sum = 0;
  for (int i = 0; i < h; ++i)
    sum += double{bf16_to_float(hidden[h + i])} *
           bf16_to_float(block[bf16_block_index(id % kLanes, i)]);
  return sum;
}

// What the other level says, as far as both have the same tokens before them.
void compare(const Model& model, const Options& options, const std::vector<Step>& mine,
             const std::vector<Step>& theirs, bool quiet, Checks& checks) {
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double apart = distance(mine[i].hidden, theirs[i].hidden);
    if (!quiet)
      std::printf("token %zu: %d at %s, %d at %s, hidden states %.4f apart\n", i, mine[i].id,
                  options.level.c_str(), theirs[i].id, options.against.c_str(), apart);
    checks.check(apart < kHiddenDistance,
                 "hidden states of token " + std::to_string(i) + ": too far");
    if (mine[i].id == theirs[i].id) continue;
    const double margin =
        logit(model, theirs[i].hidden, theirs[i].id) - logit(model, theirs[i].hidden, mine[i].id);
    if (!quiet)
      std::printf("token %zu: %s prefers its own by %.4f\n", i, options.against.c_str(), margin);
    checks.check(margin < kNearTie, "id of token " + std::to_string(i) + ": no near-tie");
    return;
  }
}

bool noticed(const char* fault, const Checks& checks) {
  std::printf("%splanted %s: noticed by %d checks\n", checks.failed() > 0 ? "" : "FAILED ", fault,
              checks.failed());
  return checks.failed() > 0;
}

int run_all(const Options& options) {
  setenv("FORERUN_AMX_ASSUME_PERMISSION", "1", 1);
  const CpuFeatures cpu = detect_cpu();
  select_isa(cpu, options.level);
  select_isa(cpu, options.against);
  const ModelFile file = read_model_file(options.file, false);
  const int prompt = static_cast<int>(file.prompt.size());
  std::printf("%d layers, prompt of %d tokens\n", file.model->config().layers, prompt);
  Checks checks(false);
  Run plain(file, options.level, 32), other(file, options.against, 32);
  const std::vector<Step> steps = decode(plain, file.prompt, options.tokens);
  const std::vector<Step> theirs = decode(other, file.prompt, options.tokens);
  compare(*file.model, options, steps, theirs, false, checks);
  std::fflush(stdout);
  verify_chain(file, options, prompt, plain, steps, checks);
  bool good = true;
  if (options.plants) {
    Checks prefix(true), swap(true);
    verify_chain(file, options, prompt - 1, plain, steps, prefix);
    good &= noticed("prefix that is one token short", prefix);
    const ModelFile swapped = read_model_file(options.file, true);
    Run faulty(swapped, options.level, 32);
    compare(*file.model, options, decode(faulty, file.prompt, 0), theirs, true, swap);
    good &= noticed("swap of the pairs of a matrix", swap);
  }
  verify_tree(file, options, plain, steps, checks);
  std::printf("%s, whole model: %d passed, %d failed\n", options.level.c_str(), checks.passed(),
              checks.failed());
  return good && checks.failed() == 0 ? 0 : 1;
}

bool parse(int argc, char** argv, Options& options) {
  if (argc < 2) return false;
  options.file = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--plants") {
      options.plants = true;
      continue;
    }
    if (++i == argc) return false;
    if (name == "--level") {
      options.level = argv[i];
    } else if (name == "--against") {
      options.against = argv[i];
    } else if (name == "--tokens") {
      options.tokens = std::max(2, std::atoi(argv[i]));
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace forerun

int main(int argc, char** argv) {
  forerun::Options options;
  if (!forerun::parse(argc, argv, options)) {
    std::fprintf(
        stderr, "usage: model_test FILE [--level NAME] [--against NAME] [--tokens N] [--plants]\n");
    return 2;
  }
  try {
    return forerun::run_all(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_test: %s\n", error.what());
    return 2;
  }
}
