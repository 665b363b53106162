// forerun._native: extend attention. Shapes and dtypes are checked here, values in the core.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "buffers.h"
#include "forerun/extend_attention.h"

namespace py = pybind11;

namespace forerun {
namespace {

// Whether a tensor holds bfloat16 (torch.bfloat16, or numpy uint16 as its bits); float32 is the
// only other choice.
bool is_bf16(const Buffer& buffer) {
  if (buffer.kind() == Kind::kBfloat || (buffer.kind() == Kind::kUint && buffer.item_bytes() == 2))
    return true;
  buffer.expect_kind(Kind::kFloat, 4);
  return false;
}

const void* floats(const Buffer& buffer, bool bf16) {
  if (is_bf16(buffer) != bf16) {
    throw std::invalid_argument(
        text(buffer.name(), " differs in precision from k; give k, v and both pools alike"));
  }
  if (bf16) return buffer.data<std::uint16_t>();
  return buffer.data<float>();
}

void extend_attention_entry(
    const py::object& q_object, const py::object& k_object, const py::object& v_object,
    const py::object& out_object, const py::object& k_pool_object, const py::object& v_pool_object,
    const py::object& page_table_object, const py::object& request_rows_object,
    const py::object& seq_lens_object, const py::object& extend_seq_lens_object,
    const py::object& extend_start_loc_object, float scale, float logit_cap, int64_t sliding_window,
    const std::optional<py::object>& tree_mask_object, const std::string& isa, int threads) {
  const Buffer q("q", q_object), k("k", k_object), v("v", v_object), out("out", out_object);
  const Buffer k_pool("k_pool", k_pool_object), v_pool("v_pool", v_pool_object);
  const Buffer page_table("page_table", page_table_object),
      request_rows("request_rows", request_rows_object);
  const Buffer seq_lens("seq_lens", seq_lens_object),
      extend_seq_lens("extend_seq_lens", extend_seq_lens_object);
  const Buffer extend_start_loc("extend_start_loc", extend_start_loc_object);

  q.expect_rank(3, "[T, H, D]");
  ExtendAttention a{};
  a.rows = q.shape(0);
  a.heads = q.shape(1);
  a.head_dim = q.shape(2);
  k.expect_rank(3, "[T, Hkv, D]");
  a.kv_heads = k.shape(1);
  k.expect_shape({a.rows, a.kv_heads, a.head_dim}, "[T, Hkv, D]");
  v.expect_shape({a.rows, a.kv_heads, a.head_dim}, "[T, Hkv, D]");
  out.expect_shape({a.rows, a.heads, a.head_dim}, "[T, H, D]");
  out.expect_kind(Kind::kFloat, 4);
  out.expect_writable();
  if (a.head_dim < 16 || a.head_dim % 16 != 0) {
    throw std::invalid_argument(
        text("q has head dim ", a.head_dim, "; it must be a multiple of 16"));
  }
  if (a.kv_heads < 1 || a.heads < 1 || a.heads % a.kv_heads != 0) {
    throw std::invalid_argument(
        text("q has ", a.heads, " heads and k ", a.kv_heads, "; H must be a multiple of Hkv"));
  }
  k_pool.expect_rank(4, "[pages, page_size, Hkv, D]");
  a.pages = k_pool.shape(0);
  a.page_size = k_pool.shape(1);
  if (a.page_size < 1) throw std::invalid_argument("k_pool has page size 0; it must be at least 1");
  k_pool.expect_shape({a.pages, a.page_size, a.kv_heads, a.head_dim}, "[pages, page_size, Hkv, D]");
  v_pool.expect_shape({a.pages, a.page_size, a.kv_heads, a.head_dim}, "[pages, page_size, Hkv, D]");
  page_table.expect_rank(2, "[requests, max_pages]");
  a.table_width = page_table.shape(1);
  request_rows.expect_rank(1, "[bs]");
  a.requests = request_rows.shape(0);
  seq_lens.expect_shape({a.requests}, "[bs]");
  extend_seq_lens.expect_shape({a.requests}, "[bs]");
  extend_start_loc.expect_shape({a.requests}, "[bs]");
  if (threads < 1)
    throw std::invalid_argument(text("threads is ", threads, "; it must be at least 1"));
  if (sliding_window < 0) {
    throw std::invalid_argument(
        text("sliding_window is ", sliding_window, "; it must be 0 (none) or more"));
  }
  expect_disjoint({&out}, {&q, &k, &v, &k_pool, &v_pool, &page_table, &request_rows, &seq_lens,
                           &extend_seq_lens, &extend_start_loc});

  a.bf16_query = is_bf16(q);
  a.query = floats(q, a.bf16_query);
  a.bf16_kv = is_bf16(k);
  a.key = floats(k, a.bf16_kv);
  a.value = floats(v, a.bf16_kv);
  a.key_pool = floats(k_pool, a.bf16_kv);
  a.value_pool = floats(v_pool, a.bf16_kv);
  a.scale = scale;
  a.logit_cap = logit_cap;
  a.sliding_window = sliding_window;
  a.isa = isa;
  a.threads = threads;
  std::optional<Buffer> tree_mask;
  if (tree_mask_object) {
    tree_mask.emplace("tree_mask", *tree_mask_object);
    tree_mask->expect_kind(Kind::kBool, 1);
    a.tree_mask = tree_mask->data<std::uint8_t>();
    a.tree_mask_size = tree_mask->size();
  }
  const IndexView pages = page_table.indices(), requests = request_rows.indices(),
                  lengths = seq_lens.indices();
  const IndexView extends = extend_seq_lens.indices(), starts = extend_start_loc.indices();
  auto* result = out.data<float>();
  const py::gil_scoped_release released;
  extend_attention(a, pages, requests, lengths, extends, starts, result);
}

}  // namespace
}  // namespace forerun

void bind_attention(py::module_& module) {
  module.def("extend_attention", &forerun::extend_attention_entry, py::arg("q"), py::arg("k"),
             py::arg("v"), py::arg("out"), py::arg("k_pool"), py::arg("v_pool"),
             py::arg("page_table"), py::arg("request_rows"), py::arg("seq_lens"),
             py::arg("extend_seq_lens"), py::arg("extend_start_loc"), py::arg("scale"),
             py::arg("logit_cap"), py::arg("sliding_window"), py::arg("tree_mask"), py::arg("isa"),
             py::arg("threads"));
}
