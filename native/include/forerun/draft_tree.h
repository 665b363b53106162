// A draft tree while it grows: which nodes are worth proposing, and which of
// those are worth a forward of the head.
//
// Nodes are ranked by the product of the probabilities along their path, which
// never rises towards the leaves: so the best set of any size holds the parents
// of its nodes, and maximises the expected accepted length where the
// probabilities are calibrated (EAGLE-2, arXiv:2406.16858; Sequoia,
// arXiv:2402.12374).
#pragma once

#include <cstdint>
#include <vector>

namespace forerun {

struct DraftNode {
  std::int32_t token;
  int parent;         // a node before it; -1: the root
  float probability;  // given its parent
  float product;      // of the path
  int depth;          // 1: a child of the root
  int row = -1;       // its row among those that went through the head, -1: none
};

struct DraftLimits {
  int nodes;  // proposed at most
  int depth;
  float min_product;  // a node below it is not proposed
};

class DraftTree {
 public:
  explicit DraftTree(const DraftLimits& limits) : limits_(limits) {}

  // Adds a child of a node, or of the root for -1.
  void add(int parent, std::int32_t token, float probability);
  // Of the best set, in descending order: the nodes that have no row yet and are
  // not as deep as the limit.
  std::vector<int> unexpanded();
  // The best set, parents before children, the best first.
  std::vector<int> best();

  DraftNode& node(int i) { return nodes_[i]; }
  const DraftNode& node(int i) const { return nodes_[i]; }
  const DraftLimits& limits() const { return limits_; }

 private:
  DraftLimits limits_;
  std::vector<DraftNode> nodes_;
};

}  // namespace forerun
