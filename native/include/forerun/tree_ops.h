// Token trees as the EAGLE line of work writes them: node 0 is the root, links are "left child,
// right sibling" (-1: none), a position is the KV length before the root's own row plus the depth.
//
// Names: bs = sessions, ndt = nodes per tree with the root. Arrays of a shape [bs, ndt] are dense.
// The caller has checked sizes; values are checked here, before anything of a session is written.
// A malformed tree is an error of its own session: the others are written in full.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forerun/index_view.h"

namespace forerun {

struct SessionError {
  int64_t session;
  std::string what;
};

// Walks each tree greedily: from the last accepted node to the child whose token the target
// predicted. `accept_index` is [bs, S]; the sizes follow from it and from `accept_token_num` [bs].
std::vector<SessionError> verify_tree_greedy(
    const MutableIndexView& predicts, const MutableIndexView& accept_index,
    const MutableIndexView& accept_token_num, const IndexView& candidates,
    const IndexView& retrieve_index, const IndexView& retrieve_next_token,
    const IndexView& retrieve_next_sibling, const IndexView& target_predict);

enum class MaskMode { kFull = 0, kQlenOnly = 1, kBitpack = 2 };

// Where a mask goes: bytes that are 0 or 1 (kFull, kQlenOnly), or one unsigned integer of
// `item_bytes` bytes a node (kBitpack). `size` counts items.
struct TreeMask {
  MaskMode mode;
  void* data;
  int64_t size;
  int64_t item_bytes;
};

// What derives from the parents of each tree; every array is [bs, ndt].
struct TreeLinks {
  MutableIndexView positions;
  MutableIndexView retrieve_index;
  MutableIndexView retrieve_next_token;
  MutableIndexView retrieve_next_sibling;
};

// From EAGLE's candidates: `selected_index` [bs, ndt-1], `parent_list` [bs, width]. Throws
// std::invalid_argument when `verified_seq_len` [bs] or the mask's size is wrong.
std::vector<SessionError> build_tree(const IndexView& parent_list, int64_t parent_list_width,
                                     const IndexView& selected_index,
                                     const IndexView& verified_seq_len, const TreeMask& mask,
                                     const TreeLinks& links, int64_t topk, int64_t depth,
                                     int64_t ndt);

// From masks: `tree_mask` [bs, ndt, ndt] of bytes, not zero = may attend.
std::vector<SessionError> reconstruct_indices_from_tree_mask(const uint8_t* tree_mask,
                                                             const IndexView& verified_seq_len,
                                                             const TreeLinks& links, int64_t ndt);

// Runs `session(b)` for every b; what it throws as std::invalid_argument becomes that session's
// error.
template <typename Session>
std::vector<SessionError> for_each_session(int64_t bs, Session session) {
  std::vector<SessionError> errors;
  for (int64_t b = 0; b < bs; ++b) {
    try {
      session(b);
    } catch (const std::invalid_argument& error) {
      errors.push_back({b, error.what()});
    }
  }
  return errors;
}

}  // namespace forerun
