// KV bookkeeping: page-table rows (one KV slot a token), slot lists, and moving K and V.
//
// `req_to_token` is [requests, pool_len]; a session b reads or writes the row
// req_pool_indices[b]. The caller has checked sizes; values are checked here, and nothing is
// written when one of them is wrong (std::invalid_argument).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "forerun/index_view.h"

namespace forerun {

// Scatters `out_cache_loc`, session after session, into the columns start..end-1 of each row.
void assign_req_to_token_pool(const IndexView& req_pool_indices,
                              const MutableIndexView& req_to_token, const IndexView& start_offset,
                              const IndexView& end_offset, const IndexView& out_cache_loc,
                              int64_t pool_len);

// Gathers the columns start..end-1 of each row into `out_cache_loc`, session after session.
void assign_extend_cache_locs(const IndexView& req_pool_indices, const IndexView& req_to_token,
                              const IndexView& start_offset, const IndexView& end_offset,
                              const MutableIndexView& out_cache_loc, int64_t pool_len);

// One row of `expanded` [bs * topk, pool_len] for each branch of each session: the slots of the
// prefix, those of the branch's own steps, zeros.
void build_draft_decode_metadata(const IndexView& req_to_token, const IndexView& req_pool_indices,
                                 const IndexView& seq_lens, const MutableIndexView& expanded,
                                 int64_t topk, int64_t num_steps, int64_t pool_len);

// Gathers the columns seq_len..seq_len + topk*num_steps - 1 of each row: branch k, step s has slot
// seq_len + k*num_steps + s.
void assign_draft_cache_locs_contiguous(const IndexView& req_pool_indices,
                                        const IndexView& req_to_token, const IndexView& seq_lens,
                                        const MutableIndexView& out_cache_loc, int64_t pool_len,
                                        int64_t topk, int64_t num_steps);

// Compacts the slots of the first `size` accepted nodes, skipping -1; returns how many there are.
int64_t fill_accept_out_cache_loc(const IndexView& accept_index, const IndexView& out_cache_loc,
                                  const MutableIndexView& accept_out_cache_loc, int64_t size);

// The last accepted token of each session: accept_tokens[stride*b + accept_lens[b] - 1].
void fill_bonus_tokens(const IndexView& accept_tokens, const IndexView& accept_lens,
                       const MutableIndexView& bonus_tokens, int64_t accept_stride);

// Slots of `slot_bytes` dense bytes, `slot_stride` bytes apart.
struct KvPool {
  std::byte* data;
  int64_t num_slots;
  int64_t slot_bytes;
  int64_t slot_stride;
};

// Moves the contents of the slots `source` to the slots `target`, in all pools (which have as many
// slots), as if every slot were read before any is written. A target may come twice only with the
// same source.
void compact_kv(const std::vector<KvPool>& pools, const IndexView& target, const IndexView& source);

}  // namespace forerun
