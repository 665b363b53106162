#include "forerun/draft_tree.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace forerun {

void DraftTree::add(int parent, std::int32_t token, float probability) {
  const bool root = parent < 0;
  const float product = root ? probability : nodes_[parent].product * probability;
  const int depth = root ? 1 : nodes_[parent].depth + 1;
  if (product < limits_.min_product || depth > limits_.depth) return;
  nodes_.push_back({token, parent, probability, product, depth});
}

std::vector<int> DraftTree::best() {
  std::vector<int> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t count = std::min<std::size_t>(std::max(limits_.nodes, 0), order.size());
  // Of equals the shallower one, then the one that was added first: a parent comes first.
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
    return std::make_tuple(-nodes_[a].product, nodes_[a].depth, a) <
           std::make_tuple(-nodes_[b].product, nodes_[b].depth, b);
  });
  order.resize(count);
  return order;
}

std::vector<int> DraftTree::unexpanded() {
  std::vector<int> nodes = best();
  nodes.erase(
      std::remove_if(nodes.begin(), nodes.end(),
                     [&](int i) { return nodes_[i].row >= 0 || nodes_[i].depth >= limits_.depth; }),
      nodes.end());
  return nodes;
}

}  // namespace forerun
