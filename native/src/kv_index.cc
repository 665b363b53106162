// Page-table rows and slot lists.
#include "forerun/kv_ops.h"

namespace forerun {
namespace {

// The range checks of rows and columns that all operations on `req_to_token` share.
class Rows {
 public:
  Rows(const IndexView& req_pool_indices, const IndexView& req_to_token, int64_t pool_len)
      : requests_(req_pool_indices),
        pool_len_(pool_len),
        num_rows_(pool_len > 0 ? req_to_token.size() / pool_len : 0) {}

  // The place of the first column of session b's row.
  int64_t first(int64_t b) const {
    return pool_len_ * requests_.checked(b, 0, num_rows_ - 1, "it is a row of req_to_token");
  }

  // The columns of session b, counted; they must lie inside its row.
  int64_t count(const IndexView& start, const IndexView& end, int64_t b) const {
    const int64_t from = start.checked(b, 0, pool_len_, "it is a column of req_to_token");
    return end.checked(b, from, pool_len_,
                       "it lies between start_offset and the columns of req_to_token") -
           from;
  }

  // The length of session b; `extra` more columns must lie behind it in its row.
  int64_t length(const IndexView& seq_lens, int64_t extra, int64_t b) const {
    return seq_lens.checked(b, 0, pool_len_ - extra,
                            "the row needs topk * num_steps columns behind it");
  }

 private:
  const IndexView& requests_;
  int64_t pool_len_;
  int64_t num_rows_;
};

// Checks every row, and that `slots` has an entry for each of their columns, which it counts.
int64_t check_ranges(const Rows& rows, const IndexView& start, const IndexView& end,
                     const IndexView& slots) {
  int64_t total = 0;
  for (int64_t b = 0; b < start.size(); ++b) {
    rows.first(b);
    total += rows.count(start, end, b);
  }
  if (total > slots.size()) {
    throw std::invalid_argument(text(slots.name(), " has ", slots.size(), " entries, ",
                                     start.name(), " and ", end.name(), " span ", total,
                                     "; give it one entry for each column"));
  }
  return total;
}

}  // namespace

void assign_req_to_token_pool(const IndexView& req_pool_indices,
                              const MutableIndexView& req_to_token, const IndexView& start_offset,
                              const IndexView& end_offset, const IndexView& out_cache_loc,
                              int64_t pool_len) {
  const Rows rows(req_pool_indices, req_to_token, pool_len);
  const int64_t total = check_ranges(rows, start_offset, end_offset, out_cache_loc);
  for (int64_t i = 0; i < total; ++i) req_to_token.expect_holds(out_cache_loc[i]);

  int64_t from = 0;
  for (int64_t b = 0; b < req_pool_indices.size(); ++b) {
    const int64_t row = rows.first(b);
    for (int64_t column = start_offset[b]; column < end_offset[b]; ++column) {
      req_to_token.set(row + column, out_cache_loc[from++]);
    }
  }
}

void assign_extend_cache_locs(const IndexView& req_pool_indices, const IndexView& req_to_token,
                              const IndexView& start_offset, const IndexView& end_offset,
                              const MutableIndexView& out_cache_loc, int64_t pool_len) {
  const Rows rows(req_pool_indices, req_to_token, pool_len);
  check_ranges(rows, start_offset, end_offset, out_cache_loc);
  for (int64_t b = 0; b < req_pool_indices.size(); ++b) {
    for (int64_t column = start_offset[b]; column < end_offset[b]; ++column) {
      out_cache_loc.expect_holds(req_to_token[rows.first(b) + column]);
    }
  }

  int64_t to = 0;
  for (int64_t b = 0; b < req_pool_indices.size(); ++b) {
    const int64_t row = rows.first(b);
    for (int64_t column = start_offset[b]; column < end_offset[b]; ++column) {
      out_cache_loc.set(to++, req_to_token[row + column]);
    }
  }
}

void build_draft_decode_metadata(const IndexView& req_to_token, const IndexView& req_pool_indices,
                                 const IndexView& seq_lens, const MutableIndexView& expanded,
                                 int64_t topk, int64_t num_steps, int64_t pool_len) {
  const Rows rows(req_pool_indices, req_to_token, pool_len);
  for (int64_t b = 0; b < req_pool_indices.size(); ++b) {
    rows.first(b);
    rows.length(seq_lens, topk * num_steps, b);
  }

  for (int64_t b = 0; b < req_pool_indices.size(); ++b) {
    const int64_t row = rows.first(b);
    const int64_t prefix = seq_lens[b];
    for (int64_t k = 0; k < topk; ++k) {
      const int64_t out = (b * topk + k) * pool_len;
      for (int64_t column = 0; column < pool_len; ++column) {
        int64_t slot = 0;
        if (column < prefix) {
          slot = req_to_token[row + column];
        } else if (column < prefix + num_steps) {
          slot = req_to_token[row + column + k * num_steps];
        }
        expanded.set(out + column, slot);
      }
    }
  }
}

void assign_draft_cache_locs_contiguous(const IndexView& req_pool_indices,
                                        const IndexView& req_to_token, const IndexView& seq_lens,
                                        const MutableIndexView& out_cache_loc, int64_t pool_len,
                                        int64_t topk, int64_t num_steps) {
  const Rows rows(req_pool_indices, req_to_token, pool_len);
  const int64_t count = topk * num_steps;
  for (int64_t b = 0; b < req_pool_indices.size(); ++b) {
    const int64_t first = rows.first(b) + rows.length(seq_lens, count, b);
    for (int64_t i = 0; i < count; ++i) out_cache_loc.expect_holds(req_to_token[first + i]);
  }

  for (int64_t b = 0; b < req_pool_indices.size(); ++b) {
    const int64_t first = rows.first(b) + seq_lens[b];
    for (int64_t i = 0; i < count; ++i) out_cache_loc.set(b * count + i, req_to_token[first + i]);
  }
}

int64_t fill_accept_out_cache_loc(const IndexView& accept_index, const IndexView& out_cache_loc,
                                  const MutableIndexView& accept_out_cache_loc, int64_t size) {
  int64_t accepted = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t node = accept_index.checked(i, -1, out_cache_loc.size() - 1,
                                              "it is an entry of out_cache_loc, or -1 for none");
    if (node == -1) continue;
    accept_out_cache_loc.expect_holds(out_cache_loc[node]);
    ++accepted;
  }
  if (accepted > accept_out_cache_loc.size()) {
    throw std::invalid_argument(text(accept_out_cache_loc.name(), " has ",
                                     accept_out_cache_loc.size(), " entries, ", accepted,
                                     " nodes are accepted; give it one entry for each"));
  }

  int64_t to = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (accept_index[i] != -1) accept_out_cache_loc.set(to++, out_cache_loc[accept_index[i]]);
  }
  return accepted;
}

void fill_bonus_tokens(const IndexView& accept_tokens, const IndexView& accept_lens,
                       const MutableIndexView& bonus_tokens, int64_t accept_stride) {
  const auto place = [&](int64_t b) {
    return accept_stride * b - 1 +
           accept_lens.checked(b, 1, accept_stride,
                               "it counts the tokens of a row, the bonus token among them");
  };
  for (int64_t b = 0; b < accept_lens.size(); ++b) {
    bonus_tokens.expect_holds(accept_tokens[place(b)]);
  }
  for (int64_t b = 0; b < accept_lens.size(); ++b) bonus_tokens.set(b, accept_tokens[place(b)]);
}

}  // namespace forerun
