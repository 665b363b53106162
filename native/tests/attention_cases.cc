// Attention: a node of a tree gets the bits that it would get with its ancestors
// committed, wherever in pages they lie, and agrees with the scalar level.
#include "cases.h"
#include "forerun/attention.h"

namespace forerun {
namespace {

constexpr int kHeads = 6, kKvHeads = 2;

struct Setting {
  int head_dim, page_size, prefix, nodes, window;
  float cap;
};

// Keys, values and queries of the prefix and of the nodes of a tree.
struct Problem {
  Setting s;
  std::vector<int> parents;
  std::vector<float> keys, values;  // [prefix + nodes, kKvHeads, head_dim]
  std::vector<float> queries;       // [nodes, kHeads, head_dim]

  std::vector<std::int32_t> path(int node) const {
    std::vector<std::int32_t> up;
    for (; node >= 0; node = parents[node]) up.insert(up.begin(), node);
    return up;
  }
};

Problem make_problem(const Setting& s) {
  Random random(static_cast<std::uint32_t>(s.prefix * 100 + s.head_dim + s.page_size));
  Problem p{s, {-1}, {}, {}, {}};
  for (int node = 1; node < s.nodes; ++node) p.parents.push_back(random.below(node));
  const std::size_t tokens = s.prefix + s.nodes;
  p.keys = random.floats(tokens * kKvHeads * s.head_dim);
  p.values = random.floats(tokens * kKvHeads * s.head_dim);
  p.queries = random.floats(static_cast<std::size_t>(s.nodes) * kHeads * s.head_dim);
  return p;
}

// Attends for `rows` new rows behind `prefix` tokens. `stored` lists the tokens
// of the cache in storage order; pages are in the order of `random`.
std::vector<float> attend(const Kernels& kernels, bool bf16, const Problem& p,
                          const std::vector<int>& stored, int prefix, int rows,
                          const std::vector<AttentionRow>& plan, const float* queries,
                          std::uint32_t seed) {
  const Setting& s = p.s;
  const int held = static_cast<int>(stored.size() + s.page_size - 1) / s.page_size;
  KvCache cache({1, kKvHeads, s.head_dim, s.page_size, held + 3, bf16});
  std::vector<std::int32_t> pages(held + 3);
  Random random(seed);
  for (int i = 0; i < held + 3; ++i) {
    const int j = random.below(i + 1);
    pages[i] = pages[j];
    pages[j] = i;
  }
  for (int i = 0; i < (held + 3) * s.page_size; ++i) {
    const int slot = cache.slot(pages.data(), i);
    if (i >= static_cast<int>(stored.size())) {
      cache.poison(slot);
      continue;
    }
    for (int head = 0; head < kKvHeads; ++head) {
      const std::size_t at = (static_cast<std::size_t>(stored[i]) * kKvHeads + head) * s.head_dim;
      cache.write(0, slot, head, p.keys.data() + at, p.values.data() + at);
    }
  }
  const std::size_t width = static_cast<std::size_t>(kHeads) * s.head_dim;
  const std::vector<AttentionSequence> sequences{{prefix, 0, rows, pages.data()}};
  Attention attention(kernels, cache, {kHeads, 0.125f, s.cap, s.window}, 1);
  std::vector<float> out(rows * width);
  attention.plan(sequences, plan);
  attention.compute(0, 0, queries, width);
  attention.merge_float(0, out.data(), width);
  return out;
}

void attention_case(const Level& level, const Setting& s, Report& report) {
  const Problem p = make_problem(s);
  const std::size_t width = static_cast<std::size_t>(kHeads) * s.head_dim;
  std::vector<int> stored;
  for (int token = 0; token < s.prefix + s.nodes; ++token) stored.push_back(token);
  const int prefix = s.prefix - (level.plant == Plant::kPrefix ? 1 : 0);
  std::vector<std::vector<std::int32_t>> paths;
  std::vector<AttentionRow> plan;
  for (int node = 0; node < s.nodes; ++node) paths.push_back(p.path(node));
  for (const auto& path : paths)
    plan.push_back({0, prefix + static_cast<int>(path.size()) - 1, path.data()});
  const auto tree = [&](const Kernels& kernels) {
    return attend(kernels, level.bf16, p, stored, prefix, s.nodes, plan, p.queries.data(), 1);
  };
  const std::vector<float> mine = tree(level.kernels), scalar = tree(level.scalar);
  const std::string what = level.name + " attention d=" + std::to_string(s.head_dim) +
                           " page=" + std::to_string(s.page_size) +
                           " prefix=" + std::to_string(s.prefix) +
                           " nodes=" + std::to_string(s.nodes) + (s.window > 0 ? " window" : "") +
                           (s.cap > 0 ? " cap" : "");
  report.check(close(mine.data(), scalar.data(), mine.size(), 2e-5f),
               what + ": differs from scalar");
  for (int node = 0; node < s.nodes; ++node) {
    // The same row with its ancestors committed, as one chain.
    std::vector<int> chain(stored.begin(), stored.begin() + s.prefix);
    for (const int ancestor : paths[node]) chain.push_back(s.prefix + ancestor);
    const int before = static_cast<int>(chain.size()) - 1;
    const std::vector<float> alone =
        attend(level.kernels, level.bf16, p, chain, before, 1, {{0, before, nullptr}},
               p.queries.data() + node * width, static_cast<std::uint32_t>(node + 2));
    report.check(same_bits(alone.data(), mine.data() + node * width, width * sizeof(float)),
                 what + " node=" + std::to_string(node) + ": differs from the chain of its path");
  }
}

}  // namespace

void attention_cases(const Level& level, Report& report) {
  for (const int page_size : {1, 5, 16, 32}) {
    for (const int prefix : {1, 15, 16, 33}) {
      attention_case(level, {64, page_size, prefix, 9, 0, 0}, report);
    }
  }
  // Across the border of two ranges of the softmax.
  attention_case(level, {64, 16, 250, 9, 0, 0}, report);
  attention_case(level, {32, 5, 252, 5, 0, 0}, report);
  attention_case(level, {32, 32, 300, 4, 0, 0}, report);
  if (level.plant != Plant::kPrefix) attention_case(level, {64, 16, 0, 9, 0, 0}, report);
  attention_case(level, {32, 16, 20, 33, 0, 0}, report);
  attention_case(level, {96, 16, 5, 40, 0, 0}, report);
  attention_case(level, {64, 32, 270, 4, 20, 0}, report);
  attention_case(level, {128, 16, 37, 5, 0, 5}, report);
}

}  // namespace forerun
