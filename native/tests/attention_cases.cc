// Attention: a node of a tree gets the bits that it would get with its ancestors
// committed, wherever in pages they lie, and agrees with the formula.
#include <algorithm>
#include <cmath>

#include "attention_reference.h"
#include "cases.h"
#include "forerun/attention.h"
#include "forerun/packed.h"

namespace forerun {
namespace {

struct Setting {
  int head_dim, page_size, prefix, nodes;
  int kv_heads = 2, group = 3;  // query heads are kv_heads * group
  int window = 0;
  float cap = 0;
  bool chain = false;

  int heads() const { return kv_heads * group; }
};

// Keys, values and queries of the prefix and of the nodes of a tree.
struct Problem {
  Setting s;
  std::vector<int> parents;
  std::vector<float> keys, values;  // [prefix + nodes, kv_heads, head_dim]
  std::vector<float> queries;       // [nodes, heads, head_dim]

  std::vector<std::int32_t> path(int node) const {
    std::vector<std::int32_t> up;
    for (; node >= 0; node = parents[node]) up.insert(up.begin(), node);
    return up;
  }
};

Problem make_problem(const Setting& s, bool bf16) {
  Random random(static_cast<std::uint32_t>(s.prefix * 100 + s.head_dim + s.page_size));
  Problem p{s, {-1}, {}, {}, {}};
  for (int node = 1; node < s.nodes; ++node)
    p.parents.push_back(s.chain ? node - 1 : random.below(node));
  const std::size_t tokens = static_cast<std::size_t>(s.prefix) + s.nodes;
  p.keys = random.floats(tokens * s.kv_heads * s.head_dim);
  p.values = random.floats(tokens * s.kv_heads * s.head_dim);
  p.queries = random.floats(static_cast<std::size_t>(s.nodes) * s.heads() * s.head_dim);
  for (float& q : p.queries) q *= 3;  // so that some keys outweigh others
  if (bf16) {
    for (auto* numbers : {&p.keys, &p.values, &p.queries})
      std::transform(numbers->begin(), numbers->end(), numbers->begin(), round_to_bf16);
  }
  return p;
}

// What the cache is given in place of the problem's keys and values.
void plant(Plant fault, int d, int kv_heads, std::vector<float>& keys, std::vector<float>& values) {
  if (fault == Plant::kKeys) std::swap(keys[0], keys[1]);  // of token 0
  if (fault == Plant::kValues) std::swap(values[0], values[static_cast<std::size_t>(kv_heads) * d]);
}

// Attends for `rows` new rows behind `prefix` tokens. `stored` lists the tokens
// of the cache in storage order; pages are in the order of `random`.
std::vector<float> attend(const Level& level, const Problem& p, const std::vector<int>& stored,
                          int prefix, int rows, const std::vector<AttentionRow>& plan,
                          const float* queries, std::uint32_t seed) {
  const Setting& s = p.s;
  const int held = static_cast<int>(stored.size() + s.page_size - 1) / s.page_size;
  KvCache cache({1, s.kv_heads, s.head_dim, s.page_size, held + 3, level.bf16});
  std::vector<std::int32_t> pages(held + 3);
  Random random(seed);
  for (int i = 0; i < held + 3; ++i) {
    const int j = random.below(i + 1);
    pages[i] = pages[j];
    pages[j] = i;
  }
  std::vector<float> keys = p.keys, values = p.values;
  plant(level.plant, s.head_dim, s.kv_heads, keys, values);
  for (int i = 0; i < (held + 3) * s.page_size; ++i) {
    const int slot = cache.slot(pages.data(), i);
    if (i >= static_cast<int>(stored.size())) {
      cache.poison(slot);
      continue;
    }
    for (int head = 0; head < s.kv_heads; ++head) {
      const std::size_t at = (static_cast<std::size_t>(stored[i]) * s.kv_heads + head) * s.head_dim;
      cache.write(0, slot, head, keys.data() + at, values.data() + at);
    }
  }
  const std::size_t width = static_cast<std::size_t>(s.heads()) * s.head_dim;
  const std::vector<AttentionSequence> sequences{{prefix, 0, rows, pages.data()}};
  Attention attention(level.kernels, cache, {s.heads(), 0.125f, s.cap, s.window}, 1);
  std::vector<float> out(rows * width);
  attention.plan(sequences, plan);
  attention.compute(0, 0, queries, width);
  attention.merge_float(0, out.data(), width);
  return out;
}

// Whether row `node` is what the formula says.
bool agrees(const Level& level, const Problem& p, int node, const float* mine) {
  const Setting& s = p.s;
  std::vector<int> seen(s.prefix);
  for (int i = 0; i < s.prefix; ++i) seen[i] = i;
  for (const int ancestor : p.path(node)) seen.push_back(s.prefix + ancestor);
  std::vector<double> out, slack;
  for (int head = 0; head < s.heads(); ++head) {
    const std::size_t at = static_cast<std::size_t>(head) * s.head_dim;
    ReferenceRow row{p.queries.data() + node * s.heads() * s.head_dim + at,
                     {},
                     {},
                     s.head_dim,
                     0.125f,
                     s.cap,
                     s.window,
                     level.rounds_weights()};
    for (const int token : seen) {
      const std::size_t of =
          (static_cast<std::size_t>(token) * s.kv_heads + head / s.group) * s.head_dim;
      row.keys.push_back(p.keys.data() + of);
      row.values.push_back(p.values.data() + of);
    }
    attention_reference(row, out, slack);
    for (int i = 0; i < s.head_dim; ++i) {
      if (!(std::fabs(mine[at + i] - out[i]) <= 2e-5 + slack[i])) return false;
    }
  }
  return true;
}

// `stride`: of how many rows one is looked at alone.
void attention_case(const Level& level, const Setting& s, int stride, Report& report) {
  const Problem p = make_problem(s, level.bf16);
  const std::size_t width = static_cast<std::size_t>(s.heads()) * s.head_dim;
  std::vector<int> stored;
  for (int token = 0; token < s.prefix + s.nodes; ++token) stored.push_back(token);
  const int prefix = s.prefix - (level.plant == Plant::kPrefix ? 1 : 0);
  if (prefix < 0) return;
  std::vector<std::vector<std::int32_t>> paths;
  std::vector<AttentionRow> plan;
  for (int node = 0; node < s.nodes; ++node) paths.push_back(p.path(node));
  for (const auto& path : paths)
    plan.push_back(
        {0, prefix + static_cast<int>(path.size()) - 1, s.chain ? nullptr : path.data()});
  const std::vector<float> mine =
      attend(level, p, stored, prefix, s.nodes, plan, p.queries.data(), 1);
  const std::string what = level.name + " attention d=" + std::to_string(s.head_dim) +
                           " page=" + std::to_string(s.page_size) +
                           " prefix=" + std::to_string(s.prefix) +
                           (s.chain ? " chain=" : " nodes=") + std::to_string(s.nodes) +
                           " group=" + std::to_string(s.group) + (s.window > 0 ? " window" : "") +
                           (s.cap > 0 ? " cap" : "");
  for (int node = s.nodes - 1; node >= 0; node -= stride) {
    const float* row = mine.data() + node * width;
    const std::string where = what + " row=" + std::to_string(node);
    report.check(agrees(level, p, node, row), where + ": differs from the formula");
    // The same row with its ancestors committed, as one chain.
    std::vector<int> chain(stored.begin(), stored.begin() + s.prefix);
    for (const int ancestor : paths[node]) chain.push_back(s.prefix + ancestor);
    const int before = static_cast<int>(chain.size()) - 1;
    const std::vector<float> alone =
        attend(level, p, chain, before, 1, {{0, before, nullptr}}, p.queries.data() + node * width,
               static_cast<std::uint32_t>(node + 2));
    report.check(same_bits(alone.data(), row, width * sizeof(float)),
                 where + ": differs from the chain of its path");
  }
}

}  // namespace

void attention_cases(const Level& level, Report& report) {
  const auto run = [&](const Setting& s) { attention_case(level, s, 1, report); };
  for (const int page_size : {1, 5, 16, 32}) {
    for (const int prefix : {1, 15, 16, 33}) run({64, page_size, prefix, 9});
  }
  // Across the border of two ranges of the softmax.
  run({64, 16, 250, 9});
  run({32, 5, 252, 5});
  run({32, 32, 300, 4});
  run({64, 16, 0, 9});
  run({32, 16, 20, 33});
  run({96, 16, 5, 40});
  run({48, 16, 30, 12});
  run({64, 32, 270, 4, 2, 3, 20});
  run({128, 16, 37, 5, 2, 3, 0, 5});
  run({256, 16, 17, 3, 1, 4});
  // Prefill in one chunk: every row as if decoded alone.
  run({64, 16, 7, 70, 1, 3, 0, 0, true});
}

void attention_grid(const Level& level, int of, Report& report) {
  int turn = 0;
  for (const int prefix : {0, 1, 31, 32, 33, 63, 64, 65, 1000}) {
    for (const int nodes : {1, 2, 5, 8, 31, 33, 64}) {
      for (const int group : {1, 3, 4, 8}) {
        for (const int page_size : {1, 16, 32, 64}) {
          if (turn++ % of != 0) continue;
          // Each row against the formula takes long: a few in each case.
          attention_case(level, {32 * (1 + turn % 2), page_size, prefix, nodes, 1, group},
                         std::max(1, nodes / 3), report);
        }
      }
    }
  }
}

}  // namespace forerun
