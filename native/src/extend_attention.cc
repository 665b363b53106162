#include "forerun/extend_attention.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "forerun/attention.h"
#include "forerun/isa.h"
#include "forerun/thread_pool.h"

namespace forerun {
namespace {

// Row `row` of a tensor as floats.
void read(const void* tensor, bool bf16, std::size_t row, std::size_t width, float* to) {
  if (bf16) {
    const auto* from = static_cast<const std::uint16_t*>(tensor) + row * width;
    std::transform(from, from + width, to, bf16_to_float);
  } else {
    const auto* from = static_cast<const float*>(tensor) + row * width;
    std::copy(from, from + width, to);
  }
}

// The lengths of one request, made here and nowhere else.
struct Request {
  int prefix, rows, first;
};

Request request(int64_t b, const ExtendAttention& a, const IndexView& seq_lens,
                const IndexView& extend_seq_lens, const IndexView& extend_start_loc) {
  const int64_t capacity = a.table_width * a.page_size;
  const int64_t rows =
      extend_seq_lens.checked(b, 0, a.rows, "new rows of a request are at most those of q");
  const int64_t first = extend_start_loc.checked(b, 0, a.rows - rows, "its rows must lie within q");
  const int64_t length = seq_lens.checked(
      b, rows, capacity + rows,
      "it counts the prefix and the new rows, and the prefix must fit the page table");
  if (length - rows > capacity) {
    throw std::invalid_argument(text(seq_lens.where(b), " leaves a prefix of ", length - rows,
                                     " tokens, but the page table holds ", capacity));
  }
  return {static_cast<int>(length - rows), static_cast<int>(rows), static_cast<int>(first)};
}

// Paths of the rows of one request: what a row of the mask allows, in order.
void add_paths(const std::uint8_t* mask, int rows, std::vector<std::int32_t>& paths,
               std::vector<std::size_t>& starts) {
  for (int i = 0; i < rows; ++i) {
    starts.push_back(paths.size());
    for (int j = 0; j < rows; ++j) {
      if (mask[static_cast<std::size_t>(i) * rows + j] == 0) continue;
      if (j > i) {
        throw std::invalid_argument(
            text("tree_mask allows row ", i, " to see row ", j,
                 ", which comes after it; a row sees its ancestors and itself"));
      }
      paths.push_back(j);
    }
  }
}

}  // namespace

void extend_attention(const ExtendAttention& a, const IndexView& page_table,
                      const IndexView& request_rows, const IndexView& seq_lens,
                      const IndexView& extend_seq_lens, const IndexView& extend_start_loc,
                      float* out) {
  std::fill(out, out + a.rows * a.heads * a.head_dim, 0.0f);
  const Kernels& kernels = *kernels_for(select_isa(detect_cpu(), a.isa), a.bf16_kv);
  const int page_size = static_cast<int>(a.page_size);
  std::vector<Request> requests;
  std::vector<std::int32_t> pages;
  std::vector<std::size_t> first_page;
  int64_t mask_size = 0;
  for (int64_t b = 0; b < a.requests; ++b) {
    requests.push_back(request(b, a, seq_lens, extend_seq_lens, extend_start_loc));
    const Request& r = requests.back();
    mask_size += static_cast<int64_t>(r.rows) * r.rows;
    first_page.push_back(pages.size());
    const int held = (r.prefix + r.rows + page_size - 1) / page_size;
    for (int i = 0; i < held; ++i) pages.push_back(static_cast<std::int32_t>(pages.size()));
  }
  if (a.tree_mask != nullptr && a.tree_mask_size != mask_size) {
    throw std::invalid_argument(text("tree_mask has ", a.tree_mask_size,
                                     " entries; the new rows need ", mask_size,
                                     ": one block [new, new] a request"));
  }
  if (pages.empty()) return;

  // A cache of the call's own, in the engine's layout. Slots that hold no token
  // are NaN, so that a kernel that touches one shows it.
  KvCache cache({1, static_cast<int>(a.kv_heads), static_cast<int>(a.head_dim), page_size,
                 static_cast<int>(pages.size()), a.bf16_kv});
  const std::size_t width = a.kv_heads * a.head_dim;
  std::vector<float> k(width), v(width);
  const auto store = [&](const void* keys, const void* values, std::size_t row, int slot) {
    read(keys, a.bf16_kv, row, width, k.data());
    read(values, a.bf16_kv, row, width, v.data());
    for (int h = 0; h < a.kv_heads; ++h)
      cache.write(0, slot, h, k.data() + h * a.head_dim, v.data() + h * a.head_dim);
  };
  std::vector<std::uint8_t> covered(a.rows);
  for (int64_t b = 0; b < a.requests; ++b) {
    const Request& r = requests[b];
    const std::int32_t* held = pages.data() + first_page[b];
    const int64_t table_row =
        request_rows.checked(b, 0, page_table.size() / std::max<int64_t>(a.table_width, 1) - 1,
                             "it is a row of the page table");
    const int capacity = (r.prefix + r.rows + page_size - 1) / page_size * page_size;
    for (int i = 0; i < capacity; ++i) {
      const int slot = cache.slot(held, i);
      if (i < r.prefix) {
        const int64_t page = page_table.checked(table_row * a.table_width + i / page_size, 0,
                                                a.pages - 1, "it is a page of the pools");
        store(a.key_pool, a.value_pool, page * page_size + i % page_size, slot);
      } else if (i < r.prefix + r.rows) {
        const int row = r.first + i - r.prefix;
        if (covered[row]++ != 0) {
          throw std::invalid_argument(text(extend_start_loc.where(b), " gives row ", row,
                                           " of q to two requests; their rows must not overlap"));
        }
        store(a.key, a.value, row, slot);
      } else {
        cache.poison(slot);
      }
    }
  }

  // Rows of the plan are dense; `from` says where each comes from.
  std::vector<AttentionSequence> sequences;
  std::vector<AttentionRow> rows;
  std::vector<std::int32_t> paths, from;
  std::vector<std::size_t> starts;
  const std::uint8_t* mask = a.tree_mask;
  for (int64_t b = 0; b < a.requests; ++b) {
    if (mask == nullptr) break;
    add_paths(mask, requests[b].rows, paths, starts);
    mask += static_cast<std::size_t>(requests[b].rows) * requests[b].rows;
  }
  std::size_t at = 0;
  starts.push_back(paths.size());
  for (int64_t b = 0; b < a.requests; ++b) {
    const Request& r = requests[b];
    if (r.rows == 0) continue;
    sequences.push_back(
        {r.prefix, static_cast<int>(rows.size()), r.rows, pages.data() + first_page[b]});
    for (int i = 0; i < r.rows; ++i) {
      AttentionRow row{static_cast<int>(sequences.size()) - 1, r.prefix + i, nullptr};
      if (a.tree_mask != nullptr) {
        row.path = paths.data() + starts[at];
        row.position = r.prefix + static_cast<int>(starts[at + 1] - starts[at]) - 1;
        ++at;
      }
      rows.push_back(row);
      from.push_back(r.first + i);
    }
  }
  if (rows.empty()) return;

  const std::size_t q_width = a.heads * a.head_dim;
  std::vector<float> q(rows.size() * q_width), result(rows.size() * q_width);
  for (std::size_t i = 0; i < rows.size(); ++i)
    read(a.query, a.bf16_query, from[i], q_width, q.data() + i * q_width);
  ThreadPool pool(a.threads, {}, kernels.thread_begin, kernels.thread_end);
  Attention attention(
      kernels, cache,
      {static_cast<int>(a.heads), a.scale, a.logit_cap, static_cast<int>(a.sliding_window)},
      a.threads);
  attention.plan(sequences, rows);
  pool.run([&](int thread) {
    attention.compute(0, thread, q.data(), q_width);
    pool.barrier();
    attention.merge_float(thread, result.data(), q_width);
  });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(result.begin() + i * q_width, result.begin() + (i + 1) * q_width,
              out + from[i] * q_width);
  }
}

}  // namespace forerun
