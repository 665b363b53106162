// What rows a pass of a draft head has, and that the caller may ask for them.
#include <algorithm>
#include <utility>

#include "forerun/draft_head.h"
#include "forerun/require.h"

namespace forerun {

void DraftHead::check(const std::vector<HeadRows>& batch) const {
  long long total = 0;
  for (const HeadRows& s : batch) {
    require_value(s.rows >= 1, "rows", s.rows, "at least 1");
    require_value(s.cached >= 0, "cached", s.cached, "at least 0");
    const bool drafts = s.limits.nodes > 0 && s.limits.depth > 0;
    // A node as deep as the limit has no row.
    const long long length = static_cast<long long>(s.cached) + s.rows,
                    deepest = length + (drafts ? s.limits.depth - 1 : 0),
                    stored = length + (drafts ? s.limits.nodes : 0);
    require_value(deepest <= config_.max_context, "cached + rows + depth - 1", deepest, "at most ",
                  config_.max_context);
    const long long pages = (stored + config_.page_size - 1) / config_.page_size;
    require_value(s.num_pages >= pages, "pages held", s.num_pages, "at least ", pages);
    for (int i = 0; i < s.num_pages; ++i) {
      require_value(s.pages[i] >= 0 && s.pages[i] < config_.pages, "page", s.pages[i], "0 to ",
                    config_.pages - 1);
    }
    for (int i = 0; i < s.rows; ++i) {
      require_value(s.tokens[i] >= 0 && s.tokens[i] < weights_->config().vocab_rows, "token id",
                    s.tokens[i], "0 to ", weights_->config().vocab_rows - 1);
    }
    total += s.rows;
  }
  require_value(total >= 1 && total <= config_.max_rows, "rows of the batch", total, "1 to ",
                config_.max_rows);
}

void DraftHead::plan_committed(const std::vector<HeadRows>& batch) {
  clear_plan();
  const std::size_t feature_size = weights_->config().feature_size;
  for (int s = 0; s < static_cast<int>(batch.size()); ++s) {
    const HeadRows& b = batch[s];
    for (int i = 0; i < b.rows; ++i) {
      features_.push_back(b.features + i * feature_size);
      add_row(b.cached + i, b.tokens[i], cache_.slot(b.pages, b.cached + i));
    }
    if (b.limits.nodes > 0 && b.limits.depth > 0) {
      // To it the rows before it are cached like all others.
      const int sequence = static_cast<int>(sequences_.size()), last = b.cached + b.rows - 1;
      sequences_.push_back({last, sequence, 1, b.pages});
      asking_.push_back({sequence, last, nullptr});
      predicted_.push_back({rows() - 1, s, -1});
    }
  }
}

void DraftHead::clear_plan() {
  features_.clear();
  positions_.clear();
  tokens_.clear();
  slots_.clear();
  sequences_.clear();
  asking_.clear();
  predicted_.clear();
  paths_.clear();
}

void DraftHead::add_row(int position, std::int32_t token, std::int32_t slot) {
  positions_.push_back(position);
  tokens_.push_back(token);
  slots_.push_back(slot);
}

void DraftHead::plan_nodes(const std::vector<HeadRows>& batch, std::vector<DraftTree>& trees) {
  const HeadConfig& c = weights_->config();
  const std::size_t h = c.hidden_size;
  std::vector<std::vector<int>> chosen;
  std::size_t path_sizes = 0;
  int room = config_.max_rows;
  for (DraftTree& tree : trees) {
    chosen.push_back(tree.unexpanded());
    std::vector<int>& nodes = chosen.back();
    if (static_cast<int>(nodes.size()) > room) nodes.resize(room);
    room -= static_cast<int>(nodes.size());
    for (const int node : nodes) path_sizes += tree.node(node).depth;
  }
  clear_plan();
  paths_.reserve(path_sizes);  // rows point into it
  for (int s = 0; s < static_cast<int>(batch.size()); ++s) {
    if (chosen[s].empty()) continue;
    DraftTree& tree = trees[s];
    const int prefix = batch[s].cached + batch[s].rows;
    // Row 0 of the outputs is that of the root.
    const int earlier = static_cast<int>(outputs_[s].size() / h) - 1;
    const int sequence = static_cast<int>(sequences_.size()), first = rows();
    int next = earlier;
    for (const int node : chosen[s]) {
      // No room in the pages: what is cached behind the nodes of this round is not ours.
      if (next == tree.limits().nodes) break;
      tree.node(node).row = next;
      const auto start = paths_.size();
      for (int n = node; n >= 0; n = tree.node(n).parent) paths_.push_back(tree.node(n).row);
      std::reverse(paths_.begin() + start, paths_.end());
      const int depth = tree.node(node).depth;
      add_row(prefix + depth - 1, tree.node(node).token,
              cache_.slot(batch[s].pages, prefix + next));
      asking_.push_back({sequence, prefix + depth - 1, paths_.data() + start});
      const int parent = tree.node(node).parent;
      const std::size_t from = parent < 0 ? 0 : tree.node(parent).row + 1;
      std::copy_n(outputs_[s].begin() + from * h, h,
                  x_.as<float>() + static_cast<std::size_t>(rows() - 1) * h);
      predicted_.push_back({rows() - 1, s, node});
      ++next;
    }
    if (rows() > first)
      sequences_.push_back({prefix, first, rows() - first, batch[s].pages, earlier});
  }
}

}  // namespace forerun
