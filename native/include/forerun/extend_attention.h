// The public operation: extend attention over plain tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forerun/index_view.h"

namespace forerun {

// The arguments of forerun.ops.extend_attention; shapes are checked already.
struct ExtendAttention {
  int64_t rows, heads, kv_heads, head_dim, requests, pages, page_size, table_width;
  bool bf16_query, bf16_kv;
  const void* query;                  // [rows, heads, head_dim]
  const void *key, *value;            // [rows, kv_heads, head_dim], the new rows
  const void *key_pool, *value_pool;  // [pages, page_size, kv_heads, head_dim]
  float scale, logit_cap;
  int64_t sliding_window;         // 0: none
  const std::uint8_t* tree_mask;  // request by request [new, new]; null: causal
  int64_t tree_mask_size;
  std::string isa;
  int threads;
};

// Writes out[rows, heads, head_dim]. Throws std::invalid_argument for lengths,
// pages or masks out of range.
void extend_attention(const ExtendAttention& a, const IndexView& page_table,
                      const IndexView& request_rows, const IndexView& seq_lens,
                      const IndexView& extend_seq_lens, const IndexView& extend_start_loc,
                      float* out);

}  // namespace forerun
