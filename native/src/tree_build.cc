// Links, positions and masks of token trees, from EAGLE's candidates or from a mask.
#include <algorithm>
#include <cstring>
#include <vector>

#include "forerun/tree_ops.h"

namespace forerun {
namespace {

constexpr int64_t kNone = -1;

// The parent of each node of one tree; parents[0] is kNone, the others come before their children.
using Parents = std::vector<int64_t>;

// Positions run up to seq_len + ndt - 1; where that does not fit, no session is written.
void check_seq_lens(const IndexView& verified_seq_len, const TreeLinks& links, int64_t ndt) {
  for (int64_t b = 0; b < verified_seq_len.size(); ++b) {
    const int64_t seq_len = verified_seq_len.checked(
        b, 0, std::numeric_limits<int64_t>::max() - ndt, "it is the KV length before the root");
    links.positions.expect_holds(seq_len + ndt - 1);
  }
}

void write_links(const TreeLinks& links, int64_t b, int64_t seq_len, const Parents& parents) {
  const int64_t ndt = static_cast<int64_t>(parents.size());
  std::vector<int64_t> depth(ndt, 0), first_child(ndt, kNone), next_sibling(ndt, kNone);
  for (int64_t node = 1; node < ndt; ++node) depth[node] = depth[parents[node]] + 1;
  // Backwards, so that each node is put before the siblings that follow it.
  for (int64_t node = ndt - 1; node > 0; --node) {
    next_sibling[node] = first_child[parents[node]];
    first_child[parents[node]] = node;
  }
  for (int64_t node = 0; node < ndt; ++node) {
    const int64_t place = b * ndt + node;
    links.positions.set(place, seq_len + depth[node]);
    links.retrieve_index.set(place, place);
    links.retrieve_next_token.set(place, first_child[node]);
    links.retrieve_next_sibling.set(place, next_sibling[node]);
  }
}

// Parents from candidate numbers: step 0 has candidates 0..topk-1, each later step topk^2 more, and
// `parent_list` holds one candidate for each group of topk.
Parents candidate_parents(const IndexView& parent_list, int64_t parent_list_width,
                          const IndexView& selected_index, int64_t b, int64_t topk, int64_t depth,
                          int64_t ndt) {
  const int64_t candidates = topk + (depth - 1) * topk * topk;
  Parents parents(ndt, kNone);
  std::vector<int64_t> selected;  // in ascending order, so a parent is found by bisection
  for (int64_t node = 1; node < ndt; ++node) {
    const int64_t place = b * (ndt - 1) + node - 1;
    const int64_t candidate = selected_index.checked(
        place, 0, candidates - 1, "candidates number topk + (depth - 1) * topk * topk");
    if (!selected.empty() && candidate <= selected.back()) {
      throw std::invalid_argument(text(selected_index.where(place), " is ", candidate, " after ",
                                       selected.back(),
                                       "; give the candidates in ascending order, "
                                       "each once"));
    }
    const int64_t group = candidate / topk;
    if (group == 0) {
      parents[node] = 0;
    } else {
      const int64_t entry = b * parent_list_width + group;
      const int64_t parent = parent_list[entry];
      const auto found = std::lower_bound(selected.begin(), selected.end(), parent);
      if (found == selected.end() || *found != parent) {
        throw std::invalid_argument(
            text(parent_list.where(entry), " is ", parent, ", the parent of candidate ", candidate,
                 parent >= candidate ? ", which it must come before (a cycle); "
                                     : ", which is not selected; ",
                 "select the parent of every selected candidate"));
      }
      parents[node] = found - selected.begin() + 1;
    }
    selected.push_back(candidate);
  }
  return parents;
}

// Where each session's part of the mask starts, in items; throws when they do not fill the mask.
std::vector<int64_t> mask_offsets(const TreeMask& mask, const IndexView& verified_seq_len,
                                  int64_t ndt) {
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (int64_t b = 0; b < verified_seq_len.size(); ++b) {
    offsets.push_back(end);
    int64_t items = mask.mode == MaskMode::kBitpack ? 1 : ndt;
    if (mask.mode == MaskMode::kFull) items += verified_seq_len[b];
    if (__builtin_mul_overflow(items, ndt, &items) || __builtin_add_overflow(end, items, &end)) {
      throw std::invalid_argument(
          text(verified_seq_len.where(b), " is ", verified_seq_len[b], ", too long for any mask"));
    }
  }
  if (end != mask.size) {
    throw std::invalid_argument(text("tree_mask has ", mask.size, " items, the trees need ", end,
                                     "; size it for its mask_mode (FULL: the sum of "
                                     "(verified_seq_len + ndt) * ndt, QLEN_ONLY: bs * ndt * ndt, "
                                     "BITPACK: bs * ndt)"));
  }
  return offsets;
}

// One row for each node: the root, its ancestors, itself. Prefix columns are the caller's.
void write_mask(const TreeMask& mask, int64_t offset, int64_t seq_len, const Parents& parents) {
  const int64_t ndt = static_cast<int64_t>(parents.size());
  if (mask.mode == MaskMode::kBitpack) {
    std::vector<uint32_t> bits(ndt);
    for (int64_t node = 0; node < ndt; ++node) {
      bits[node] = uint32_t{1} << node | (node > 0 ? bits[parents[node]] : 0);
      // Little-endian: the low bytes of the integer come first.
      std::memcpy(static_cast<uint8_t*>(mask.data) + (offset + node) * mask.item_bytes, &bits[node],
                  mask.item_bytes);
    }
    return;
  }
  const int64_t prefix = mask.mode == MaskMode::kFull ? seq_len : 0;
  uint8_t* row = static_cast<uint8_t*>(mask.data) + offset + prefix;
  for (int64_t node = 0; node < ndt; ++node, row += prefix + ndt) {
    std::memset(row, 0, ndt);
    for (int64_t seen = node; seen != kNone; seen = parents[seen]) row[seen] = 1;
  }
}

// Parents from one [ndt, ndt] mask: the nearest earlier node that a row attends to. The rest of the
// row must be the parent's own row, else the mask describes no tree.
Parents mask_parents(const uint8_t* mask, int64_t ndt) {
  Parents parents(ndt, kNone);
  for (int64_t node = 0; node < ndt; ++node) {
    const uint8_t* row = mask + node * ndt;
    for (int64_t seen = node + 1; seen < ndt; ++seen) {
      if (row[seen]) {
        throw std::invalid_argument(text("tree_mask row ", node, " attends to the later node ",
                                         seen, "; the mask must be lower triangular"));
      }
    }
    if (node == 0) continue;
    int64_t parent = node - 1;
    while (parent >= 0 && !row[parent]) --parent;
    if (parent < 0) {
      throw std::invalid_argument(text("tree_mask row ", node,
                                       " attends to no earlier node, so it has no parent; every "
                                       "node but the root attends to the root at least"));
    }
    const uint8_t* parent_row = mask + parent * ndt;
    for (int64_t seen = 0; seen < parent; ++seen) {
      if (!row[seen] != !parent_row[seen]) {
        throw std::invalid_argument(text("tree_mask row ", node, " and the row of its parent ",
                                         parent, " differ at node ", seen,
                                         "; a node attends to all ancestors of its parent"));
      }
    }
    parents[node] = parent;
  }
  return parents;
}

}  // namespace

std::vector<SessionError> build_tree(const IndexView& parent_list, int64_t parent_list_width,
                                     const IndexView& selected_index,
                                     const IndexView& verified_seq_len, const TreeMask& mask,
                                     const TreeLinks& links, int64_t topk, int64_t depth,
                                     int64_t ndt) {
  check_seq_lens(verified_seq_len, links, ndt);
  const std::vector<int64_t> offsets = mask_offsets(mask, verified_seq_len, ndt);
  return for_each_session(verified_seq_len.size(), [&](int64_t b) {
    const Parents parents =
        candidate_parents(parent_list, parent_list_width, selected_index, b, topk, depth, ndt);
    write_links(links, b, verified_seq_len[b], parents);
    write_mask(mask, offsets[b], verified_seq_len[b], parents);
  });
}

std::vector<SessionError> reconstruct_indices_from_tree_mask(const uint8_t* tree_mask,
                                                             const IndexView& verified_seq_len,
                                                             const TreeLinks& links, int64_t ndt) {
  check_seq_lens(verified_seq_len, links, ndt);
  return for_each_session(verified_seq_len.size(), [&](int64_t b) {
    const Parents parents = mask_parents(tree_mask + b * ndt * ndt, ndt);
    write_links(links, b, verified_seq_len[b], parents);
  });
}

}  // namespace forerun
