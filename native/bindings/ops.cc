// forerun._native: the tree operations. Shapes and dtypes are checked here, values in the core.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "buffers.h"
#include "forerun/tree_ops.h"

namespace py = pybind11;

void bind_kv_ops(py::module_& module);

namespace forerun {
namespace {

// (session, what is wrong with its tree), for each session that was not written.
using SessionErrors = std::vector<std::pair<int64_t, std::string>>;

SessionErrors to_python(const std::vector<SessionError>& errors) {
  SessionErrors pairs;
  for (const SessionError& error : errors) pairs.emplace_back(error.session, error.what);
  return pairs;
}

void expect_in_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument(text(name, " is ", value, "; give a number in ", low, "..", high));
  }
}

constexpr int64_t kMaxNodes = 1 << 16;  // keeps ndt * ndt, topk * topk * depth far from overflow

SessionErrors verify_tree_greedy_entry(
    const py::object& predicts_object, const py::object& accept_index_object,
    const py::object& accept_token_num_object, const py::object& candidates_object,
    const py::object& retrieve_index_object, const py::object& retrieve_next_token_object,
    const py::object& retrieve_next_sibling_object, const py::object& target_predict_object) {
  const Buffer predicts("predicts", predicts_object);
  const Buffer accept_index("accept_index", accept_index_object);
  const Buffer accept_token_num("accept_token_num", accept_token_num_object);
  const Buffer candidates("candidates", candidates_object);
  const Buffer retrieve_index("retrieve_index", retrieve_index_object);
  const Buffer retrieve_next_token("retrieve_next_token", retrieve_next_token_object);
  const Buffer retrieve_next_sibling("retrieve_next_sibling", retrieve_next_sibling_object);
  const Buffer target_predict("target_predict", target_predict_object);

  candidates.expect_rank(2, "[bs, ndt]");
  const int64_t bs = candidates.shape(0);
  const int64_t ndt = candidates.shape(1);
  expect_in_range("candidates.shape[1]", ndt, 1, kMaxNodes);
  predicts.expect_shape_or_flat({bs, ndt}, "[bs, ndt]");
  accept_index.expect_rank(2, "[bs, S]");
  accept_index.expect_shape({bs, accept_index.shape(1)}, "[bs, S]");
  accept_token_num.expect_shape({bs}, "[bs]");
  retrieve_index.expect_shape({bs, ndt}, "[bs, ndt]");
  retrieve_next_token.expect_shape({bs, ndt}, "[bs, ndt]");
  retrieve_next_sibling.expect_shape({bs, ndt}, "[bs, ndt]");
  target_predict.expect_shape_or_flat({bs, ndt}, "[bs, ndt]");
  expect_disjoint({&predicts, &accept_index, &accept_token_num},
                  {&candidates, &retrieve_index, &retrieve_next_token, &retrieve_next_sibling,
                   &target_predict});

  const MutableIndexView out_predicts = predicts.mutable_indices();
  const MutableIndexView out_index = accept_index.mutable_indices();
  const MutableIndexView out_num = accept_token_num.mutable_indices();
  const IndexView tokens = candidates.indices();
  const IndexView places = retrieve_index.indices();
  const IndexView next = retrieve_next_token.indices();
  const IndexView sibling = retrieve_next_sibling.indices();
  const IndexView target = target_predict.indices();
  const py::gil_scoped_release released;
  return to_python(
      verify_tree_greedy(out_predicts, out_index, out_num, tokens, places, next, sibling, target));
}

// The four outputs [bs, ndt] that describe trees; `positions` may come flat.
TreeLinks tree_links(const Buffer& positions, const Buffer& retrieve_index,
                     const Buffer& retrieve_next_token, const Buffer& retrieve_next_sibling,
                     int64_t bs, int64_t ndt) {
  for (const Buffer* links :
       {&positions, &retrieve_index, &retrieve_next_token, &retrieve_next_sibling}) {
    links->expect_shape_or_flat({bs, ndt}, "[bs, ndt]");
  }
  return {positions.mutable_indices(), retrieve_index.mutable_indices(),
          retrieve_next_token.mutable_indices(), retrieve_next_sibling.mutable_indices()};
}

TreeMask mask_output(const Buffer& tree_mask, int64_t mask_mode, int64_t bs, int64_t ndt) {
  expect_in_range("mask_mode", mask_mode, 0, 2);
  const auto mode = static_cast<MaskMode>(mask_mode);
  if (mode == MaskMode::kBitpack) {
    expect_in_range("ndt of a BITPACK mask", ndt, 1, 32);
    const int64_t bytes = ndt <= 8 ? 1 : ndt <= 16 ? 2 : 4;
    tree_mask.expect_kind(Kind::kUint, bytes);
    tree_mask.expect_shape_or_flat({bs, ndt}, "[bs, ndt]");
  } else {
    tree_mask.expect_kind(Kind::kBool, 1);
  }
  if (mode == MaskMode::kFull) {
    tree_mask.expect_rank(1, "[sum((verified_seq_len + ndt) * ndt)]");
  }
  if (mode == MaskMode::kQlenOnly) {
    tree_mask.expect_shape_or_flat({bs, ndt, ndt}, "[bs, ndt, ndt]");
  }
  tree_mask.expect_contiguous();
  tree_mask.expect_writable();
  return {mode, tree_mask.bytes(), tree_mask.size(), tree_mask.item_bytes()};
}

SessionErrors build_tree_entry(
    const py::object& parent_list_object, const py::object& selected_index_object,
    const py::object& verified_seq_len_object, const py::object& tree_mask_object,
    const py::object& positions_object, const py::object& retrieve_index_object,
    const py::object& retrieve_next_token_object, const py::object& retrieve_next_sibling_object,
    int64_t topk, int64_t depth, int64_t ndt, int64_t mask_mode) {
  const Buffer parent_list("parent_list", parent_list_object);
  const Buffer selected_index("selected_index", selected_index_object);
  const Buffer verified_seq_len("verified_seq_len", verified_seq_len_object);
  const Buffer tree_mask("tree_mask", tree_mask_object);
  const Buffer positions("positions", positions_object);
  const Buffer retrieve_index("retrieve_index", retrieve_index_object);
  const Buffer retrieve_next_token("retrieve_next_token", retrieve_next_token_object);
  const Buffer retrieve_next_sibling("retrieve_next_sibling", retrieve_next_sibling_object);

  expect_in_range("topk", topk, 1, kMaxNodes);
  expect_in_range("depth", depth, 1, kMaxNodes);
  expect_in_range("ndt", ndt, 1, kMaxNodes);
  verified_seq_len.expect_rank(1, "[bs]");
  const int64_t bs = verified_seq_len.shape(0);
  parent_list.expect_rank(2, "[bs, topk * (depth - 1) + 1]");
  // With one step every candidate hangs on the root, and callers leave the list empty.
  const bool empty_list = depth == 1 && parent_list.shape(1) == 0;
  const int64_t width = empty_list ? 0 : topk * (depth - 1) + 1;
  parent_list.expect_shape({bs, width}, "[bs, topk * (depth - 1) + 1]");
  selected_index.expect_shape({bs, ndt - 1}, "[bs, ndt - 1]");
  expect_disjoint(
      {&tree_mask, &positions, &retrieve_index, &retrieve_next_token, &retrieve_next_sibling},
      {&parent_list, &selected_index, &verified_seq_len});

  const TreeLinks links =
      tree_links(positions, retrieve_index, retrieve_next_token, retrieve_next_sibling, bs, ndt);
  const TreeMask mask = mask_output(tree_mask, mask_mode, bs, ndt);
  const IndexView parents = parent_list.indices();
  const IndexView selected = selected_index.indices();
  const IndexView seq_lens = verified_seq_len.indices();
  const py::gil_scoped_release released;
  return to_python(build_tree(parents, width, selected, seq_lens, mask, links, topk, depth, ndt));
}

SessionErrors reconstruct_entry(const py::object& tree_mask_object,
                                const py::object& verified_seq_len_object,
                                const py::object& positions_object,
                                const py::object& retrieve_index_object,
                                const py::object& retrieve_next_token_object,
                                const py::object& retrieve_next_sibling_object, int64_t bs,
                                int64_t ndt) {
  const Buffer tree_mask("tree_mask", tree_mask_object);
  const Buffer verified_seq_len("verified_seq_len", verified_seq_len_object);
  const Buffer positions("positions", positions_object);
  const Buffer retrieve_index("retrieve_index", retrieve_index_object);
  const Buffer retrieve_next_token("retrieve_next_token", retrieve_next_token_object);
  const Buffer retrieve_next_sibling("retrieve_next_sibling", retrieve_next_sibling_object);

  expect_in_range("bs", bs, 0, int64_t{1} << 30);
  expect_in_range("ndt", ndt, 1, kMaxNodes);
  verified_seq_len.expect_shape({bs}, "[bs]");
  tree_mask.expect_kind(Kind::kBool, 1);
  tree_mask.expect_shape_or_flat({bs, ndt, ndt}, "[bs, ndt, ndt]");
  expect_disjoint({&positions, &retrieve_index, &retrieve_next_token, &retrieve_next_sibling},
                  {&tree_mask, &verified_seq_len});

  const TreeLinks links =
      tree_links(positions, retrieve_index, retrieve_next_token, retrieve_next_sibling, bs, ndt);
  const IndexView seq_lens = verified_seq_len.indices();
  const uint8_t* mask = tree_mask.data<uint8_t>();
  const py::gil_scoped_release released;
  return to_python(reconstruct_indices_from_tree_mask(mask, seq_lens, links, ndt));
}

}  // namespace
}  // namespace forerun

void bind_tree_ops(py::module_& module) {
  using py::arg;
  module.def("verify_tree_greedy", forerun::verify_tree_greedy_entry, arg("predicts"),
             arg("accept_index"), arg("accept_token_num"), arg("candidates"), arg("retrieve_index"),
             arg("retrieve_next_token"), arg("retrieve_next_sibling"), arg("target_predict"));
  module.def("build_tree", forerun::build_tree_entry, arg("parent_list"), arg("selected_index"),
             arg("verified_seq_len"), arg("tree_mask"), arg("positions"), arg("retrieve_index"),
             arg("retrieve_next_token"), arg("retrieve_next_sibling"), arg("topk"), arg("depth"),
             arg("ndt"), arg("mask_mode"));
  module.def("reconstruct_indices_from_tree_mask", forerun::reconstruct_entry, arg("tree_mask"),
             arg("verified_seq_len"), arg("positions"), arg("retrieve_index"),
             arg("retrieve_next_token"), arg("retrieve_next_sibling"), arg("bs"), arg("ndt"));
  bind_kv_ops(module);
}
