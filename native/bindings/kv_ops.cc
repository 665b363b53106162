// forerun._native: KV bookkeeping. Shapes and dtypes are checked here, values in the core.
#include "forerun/kv_ops.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <vector>

#include "buffers.h"

namespace py = pybind11;

namespace forerun {
namespace {

// `req_to_token` and the rows that the sessions of a call use.
struct PageTable {
  Buffer requests;
  Buffer table;
  int64_t bs;

  PageTable(const py::object& req_pool_indices, const py::object& req_to_token, int64_t pool_len)
      : requests("req_pool_indices", req_pool_indices), table("req_to_token", req_to_token) {
    requests.expect_rank(1, "[bs]");
    bs = requests.shape(0);
    table.expect_rank(2, "[requests, pool_len]");
    table.expect_shape({table.shape(0), pool_len}, "[requests, pool_len]");
  }
};

// The branches of a draft decode, as many columns as a row has at most.
void check_branches(int64_t topk, int64_t num_steps, int64_t pool_len) {
  if (topk < 1 || num_steps < 1 || topk > pool_len || topk * num_steps > pool_len ||
      num_steps > pool_len) {
    throw std::invalid_argument(text("topk is ", topk, " and num_steps ", num_steps,
                                     "; both must be at least 1, and their product at most "
                                     "pool_len = ",
                                     pool_len));
  }
}

// A tensor of the kind and dtype of `like`, its values not set.
py::object new_tensor(const py::object& like, int64_t rows, int64_t columns) {
  const py::tuple shape = py::make_tuple(rows, columns);
  if (py::hasattr(like, "new_empty")) return like.attr("new_empty")(shape);
  return py::module_::import("numpy").attr("empty")(shape, like.attr("dtype"));
}

void assign_req_to_token_pool_entry(const py::object& req_pool_indices,
                                    const py::object& req_to_token,
                                    const py::object& start_offset_object,
                                    const py::object& end_offset_object,
                                    const py::object& out_cache_loc_object, int64_t pool_len) {
  const PageTable rows(req_pool_indices, req_to_token, pool_len);
  const Buffer start_offset("start_offset", start_offset_object);
  const Buffer end_offset("end_offset", end_offset_object);
  const Buffer out_cache_loc("out_cache_loc", out_cache_loc_object);
  start_offset.expect_shape({rows.bs}, "[bs]");
  end_offset.expect_shape({rows.bs}, "[bs]");
  out_cache_loc.expect_rank(1, "[slots]");
  expect_disjoint({&rows.table}, {&rows.requests, &start_offset, &end_offset, &out_cache_loc});

  const MutableIndexView table = rows.table.mutable_indices();
  const IndexView requests = rows.requests.indices();
  const IndexView start = start_offset.indices();
  const IndexView end = end_offset.indices();
  const IndexView slots = out_cache_loc.indices();
  const py::gil_scoped_release released;
  assign_req_to_token_pool(requests, table, start, end, slots, pool_len);
}

void assign_extend_cache_locs_entry(const py::object& req_pool_indices,
                                    const py::object& req_to_token,
                                    const py::object& start_offset_object,
                                    const py::object& end_offset_object,
                                    const py::object& out_cache_loc_object, int64_t pool_len) {
  const PageTable rows(req_pool_indices, req_to_token, pool_len);
  const Buffer start_offset("start_offset", start_offset_object);
  const Buffer end_offset("end_offset", end_offset_object);
  const Buffer out_cache_loc("out_cache_loc", out_cache_loc_object);
  start_offset.expect_shape({rows.bs}, "[bs]");
  end_offset.expect_shape({rows.bs}, "[bs]");
  out_cache_loc.expect_rank(1, "[slots]");
  expect_disjoint({&out_cache_loc}, {&rows.table, &rows.requests, &start_offset, &end_offset});

  const IndexView table = rows.table.indices();
  const IndexView requests = rows.requests.indices();
  const IndexView start = start_offset.indices();
  const IndexView end = end_offset.indices();
  const MutableIndexView slots = out_cache_loc.mutable_indices();
  const py::gil_scoped_release released;
  assign_extend_cache_locs(requests, table, start, end, slots, pool_len);
}

py::object build_draft_decode_metadata_entry(const py::object& req_to_token,
                                             const py::object& req_pool_indices,
                                             const py::object& seq_lens_object, int64_t topk,
                                             int64_t num_steps, int64_t pool_len) {
  const PageTable rows(req_pool_indices, req_to_token, pool_len);
  const Buffer seq_lens("seq_lens", seq_lens_object);
  seq_lens.expect_shape({rows.bs}, "[bs]");
  check_branches(topk, num_steps, pool_len);
  const IndexView table = rows.table.indices();
  const IndexView requests = rows.requests.indices();
  const IndexView lengths = seq_lens.indices();

  py::object result = new_tensor(req_to_token, rows.bs * topk, pool_len);
  const Buffer expanded("expanded", result);
  const MutableIndexView out = expanded.mutable_indices();
  {
    const py::gil_scoped_release released;
    build_draft_decode_metadata(table, requests, lengths, out, topk, num_steps, pool_len);
  }
  return result;
}

void assign_draft_cache_locs_contiguous_entry(const py::object& req_pool_indices,
                                              const py::object& req_to_token,
                                              const py::object& seq_lens_object,
                                              const py::object& out_cache_loc_object,
                                              int64_t pool_len, int64_t topk, int64_t num_steps) {
  const PageTable rows(req_pool_indices, req_to_token, pool_len);
  const Buffer seq_lens("seq_lens", seq_lens_object);
  const Buffer out_cache_loc("out_cache_loc", out_cache_loc_object);
  seq_lens.expect_shape({rows.bs}, "[bs]");
  check_branches(topk, num_steps, pool_len);
  out_cache_loc.expect_shape_or_flat({rows.bs, topk, num_steps}, "[bs, topk, num_steps]");
  expect_disjoint({&out_cache_loc}, {&rows.table, &rows.requests, &seq_lens});

  const IndexView table = rows.table.indices();
  const IndexView requests = rows.requests.indices();
  const IndexView lengths = seq_lens.indices();
  const MutableIndexView slots = out_cache_loc.mutable_indices();
  const py::gil_scoped_release released;
  assign_draft_cache_locs_contiguous(requests, table, lengths, slots, pool_len, topk, num_steps);
}

int64_t fill_accept_out_cache_loc_entry(const py::object& accept_index_object,
                                        const py::object& out_cache_loc_object,
                                        const py::object& accept_out_cache_loc_object,
                                        std::optional<int64_t> size) {
  const Buffer accept_index("accept_index", accept_index_object);
  const Buffer out_cache_loc("out_cache_loc", out_cache_loc_object);
  const Buffer accept_out_cache_loc("accept_out_cache_loc", accept_out_cache_loc_object);
  const int64_t entries = size.value_or(accept_index.size());
  if (entries < 0 || entries > accept_index.size()) {
    throw std::invalid_argument(text("size is ", entries, "; accept_index has ",
                                     accept_index.size(), " entries, leave size out for all"));
  }
  accept_out_cache_loc.expect_rank(1, "[slots]");
  expect_disjoint({&accept_out_cache_loc}, {&accept_index, &out_cache_loc});

  const IndexView nodes = accept_index.indices();
  const IndexView slots = out_cache_loc.indices();
  const MutableIndexView accepted = accept_out_cache_loc.mutable_indices();
  const py::gil_scoped_release released;
  return fill_accept_out_cache_loc(nodes, slots, accepted, entries);
}

void fill_bonus_tokens_entry(const py::object& accept_tokens_object,
                             const py::object& accept_lens_object,
                             const py::object& bonus_tokens_object, int64_t accept_stride) {
  const Buffer accept_tokens("accept_tokens", accept_tokens_object);
  const Buffer accept_lens("accept_lens", accept_lens_object);
  const Buffer bonus_tokens("bonus_tokens", bonus_tokens_object);
  accept_lens.expect_rank(1, "[bs]");
  const int64_t bs = accept_lens.shape(0);
  // Against the division, so that a huge stride overflows nothing.
  if (accept_stride < 1 || (bs > 0 && accept_stride > accept_tokens.size() / bs)) {
    throw std::invalid_argument(text("accept_stride is ", accept_stride, "; accept_tokens has ",
                                     accept_tokens.size(), " items for ", bs,
                                     " sessions, give the items of one session"));
  }
  accept_tokens.expect_shape_or_flat({bs, accept_stride}, "[bs, accept_stride]");
  bonus_tokens.expect_shape({bs}, "[bs]");
  expect_disjoint({&bonus_tokens}, {&accept_tokens, &accept_lens});

  const IndexView tokens = accept_tokens.indices();
  const IndexView lengths = accept_lens.indices();
  const MutableIndexView bonus = bonus_tokens.mutable_indices();
  const py::gil_scoped_release released;
  fill_bonus_tokens(tokens, lengths, bonus, accept_stride);
}

KvPool kv_pool(const Buffer& buffer) {
  if (buffer.rank() == 0) buffer.expect_rank(1, "[slots, ...]");
  buffer.expect_writable();
  buffer.expect_contiguous(1);
  const int64_t num_slots = buffer.shape(0);
  const int64_t slot_bytes = num_slots > 0 ? buffer.size() / num_slots * buffer.item_bytes() : 0;
  if (num_slots > 1 && buffer.stride_bytes(0) < slot_bytes) {
    throw std::invalid_argument(text(buffer.name(), " has slots of ", slot_bytes, " bytes, ",
                                     buffer.stride_bytes(0),
                                     " bytes apart; they must not overlap nor run backwards"));
  }
  return {buffer.bytes(), num_slots, slot_bytes, buffer.stride_bytes(0)};
}

void compact_kv_entry(const py::object& k_pool_object, const py::object& v_pool_object,
                      const py::object& target_object, const py::object& source_object) {
  const Buffer k_pool("k_pool", k_pool_object);
  const Buffer v_pool("v_pool", v_pool_object);
  const Buffer tgt_cache_loc("tgt_cache_loc", target_object);
  const Buffer src_cache_loc("src_cache_loc", source_object);
  const std::vector<KvPool> pools = {kv_pool(k_pool), kv_pool(v_pool)};
  if (k_pool.shape(0) != v_pool.shape(0)) {
    throw std::invalid_argument(text("v_pool has ", v_pool.shape(0), " slots, k_pool ",
                                     k_pool.shape(0), "; give both as many"));
  }
  tgt_cache_loc.expect_rank(1, "[moves]");
  src_cache_loc.expect_shape({tgt_cache_loc.shape(0)}, "[moves]");
  // K and V may share memory: V can be a part of K, or both the halves of one array.
  expect_disjoint({&k_pool}, {&tgt_cache_loc, &src_cache_loc});
  expect_disjoint({&v_pool}, {&tgt_cache_loc, &src_cache_loc});

  const IndexView target = tgt_cache_loc.indices();
  const IndexView source = src_cache_loc.indices();
  const py::gil_scoped_release released;
  compact_kv(pools, target, source);
}

}  // namespace
}  // namespace forerun

void bind_kv_ops(py::module_& module) {
  using py::arg;
  module.def("assign_req_to_token_pool", forerun::assign_req_to_token_pool_entry,
             arg("req_pool_indices"), arg("req_to_token"), arg("start_offset"), arg("end_offset"),
             arg("out_cache_loc"), arg("pool_len"));
  module.def("assign_extend_cache_locs", forerun::assign_extend_cache_locs_entry,
             arg("req_pool_indices"), arg("req_to_token"), arg("start_offset"), arg("end_offset"),
             arg("out_cache_loc"), arg("pool_len"));
  module.def("build_draft_decode_metadata", forerun::build_draft_decode_metadata_entry,
             arg("req_to_token"), arg("req_pool_indices"), arg("seq_lens"), arg("topk"),
             arg("num_steps"), arg("pool_len"));
  module.def("assign_draft_cache_locs_contiguous",
             forerun::assign_draft_cache_locs_contiguous_entry, arg("req_pool_indices"),
             arg("req_to_token"), arg("seq_lens"), arg("out_cache_loc"), arg("pool_len"),
             arg("topk"), arg("num_steps"));
  module.def("fill_accept_out_cache_loc", forerun::fill_accept_out_cache_loc_entry,
             arg("accept_index"), arg("out_cache_loc"), arg("accept_out_cache_loc"),
             arg("size") = py::none());
  module.def("fill_bonus_tokens", forerun::fill_bonus_tokens_entry, arg("accept_tokens"),
             arg("accept_lens"), arg("bonus_tokens"), arg("accept_stride"));
  module.def("compact_kv", forerun::compact_kv_entry, arg("k_pool"), arg("v_pool"),
             arg("tgt_cache_loc"), arg("src_cache_loc"));
}
