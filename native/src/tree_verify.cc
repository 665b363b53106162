// Greedy verification of token trees.
#include <vector>

#include "forerun/tree_ops.h"

namespace forerun {
namespace {

constexpr int64_t kNone = -1;

// Every node hangs on one link at most and no links form a loop, so a walk from the root ends.
// The order of siblings is free: callers list them by score as well as by number.
void check_links(const IndexView& next_token, const IndexView& next_sibling, int64_t root,
                 int64_t ndt) {
  std::vector<int64_t> linked_from(ndt, kNone);
  for (int64_t node = 0; node < ndt; ++node) {
    for (const IndexView* links : {&next_token, &next_sibling}) {
      const int64_t to =
          links->checked(root + node, kNone, ndt - 1, "a link is -1 or a node of the same tree");
      if (to == kNone) continue;
      const std::string link = text(links->where(root + node), " is ", to);
      if (to == 0) {
        throw std::invalid_argument(
            text(link, ", a loop through the root; no link may point at node 0"));
      }
      if (node == 0 && links == &next_sibling) {
        throw std::invalid_argument(text(link, ", but the root has no siblings; set it to -1"));
      }
      if (linked_from[to] != kNone) {
        throw std::invalid_argument(text(link, ", but node ", linked_from[to],
                                         " points at that node too; a node has one parent and one "
                                         "place among its siblings"));
      }
      linked_from[to] = node;
    }
  }
  std::vector<int64_t> seen_from(ndt, kNone);
  for (int64_t start = 1; start < ndt; ++start) {
    int64_t node = start;
    for (; node != kNone && seen_from[node] == kNone; node = linked_from[node]) {
      seen_from[node] = start;
    }
    if (node != kNone && seen_from[node] == start) {
      throw std::invalid_argument(text(next_token.name(), " and ", next_sibling.name(),
                                       " form a loop through node ", node,
                                       "; links must lead away from the root"));
    }
  }
}

}  // namespace

std::vector<SessionError> verify_tree_greedy(
    const MutableIndexView& predicts, const MutableIndexView& accept_index,
    const MutableIndexView& accept_token_num, const IndexView& candidates,
    const IndexView& retrieve_index, const IndexView& retrieve_next_token,
    const IndexView& retrieve_next_sibling, const IndexView& target_predict) {
  const int64_t bs = accept_token_num.size();
  if (bs == 0) return {};
  const int64_t ndt = candidates.size() / bs;
  const int64_t capacity = accept_index.size() / bs;

  return for_each_session(bs, [&](int64_t b) {
    const int64_t root = b * ndt;
    check_links(retrieve_next_token, retrieve_next_sibling, root, ndt);
    for (int64_t node = 0; node < ndt; ++node) {
      retrieve_index.checked(root + node, 0, bs * ndt - 1,
                             "it is the flat place of a node, b*ndt + i");
    }

    std::vector<int64_t> path;  // flat places of the accepted nodes, the root first
    for (int64_t node = 0; node != kNone;) {
      path.push_back(retrieve_index[root + node]);
      const int64_t token = target_predict[path.back()];
      predicts.expect_holds(token);
      node = retrieve_next_token[root + node];
      while (node != kNone && candidates[root + node] != token) {
        node = retrieve_next_sibling[root + node];
      }
    }
    const int64_t length = static_cast<int64_t>(path.size());
    if (length > capacity) {
      throw std::invalid_argument(
          text(accept_index.name(), " has ", capacity, " columns, the accepted path needs ", length,
               "; give it as many as the deepest path has nodes, the root counted"));
    }

    for (int64_t i = 0; i < length; ++i) predicts.set(path[i], target_predict[path[i]]);
    for (int64_t i = 0; i < capacity; ++i) {
      accept_index.set(b * capacity + i, i < length ? path[i] : kNone);
    }
    accept_token_num.set(b, length - 1);
  });
}

}  // namespace forerun
