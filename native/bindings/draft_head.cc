// The draft head: its weights, its KV cache, and a round of drafting.
#include "forerun/draft_head.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"

namespace py = pybind11;
using forerun::DraftHead;
using forerun::DraftTree;
using forerun::HeadWeights;
using forerun_bindings::Array;
using forerun_bindings::expect_rank;
using forerun_bindings::expect_rotations;
using forerun_bindings::extent;

namespace {

std::unique_ptr<DraftHead> make_head(std::shared_ptr<const HeadWeights> weights, bool bf16,
                                     int page_size, int pages, int max_rows, int threads,
                                     std::vector<int> cpus, std::string isa,
                                     const Array<float>& cos, const Array<float>& sin, int top_k) {
  const int max_context = expect_rotations(cos, sin, weights->config().head_dim);
  forerun::ForwardConfig config{bf16,        page_size, pages,           max_rows,
                                max_context, threads,   std::move(cpus), std::move(isa)};
  py::gil_scoped_release released;
  return std::make_unique<DraftHead>(std::move(weights), config, top_k, cos.data(), sin.data());
}

// (cached rows, features, tokens, pages, nodes, depth)
using Rows =
    std::tuple<int, Array<std::uint16_t>, Array<std::int32_t>, Array<std::int32_t>, int, int>;

// (tokens, parents, probabilities) of the nodes, best first; parent -1: the root.
py::tuple nodes_of(DraftTree& tree) {
  const std::vector<int> best = tree.best();
  const auto size = static_cast<py::ssize_t>(best.size());
  Array<std::int32_t> tokens(size), parents(size);
  Array<float> probabilities(size);
  std::vector<int> place(best.empty() ? 0 : *std::max_element(best.begin(), best.end()) + 1, -1);
  for (int i = 0; i < static_cast<int>(size); ++i) {
    const forerun::DraftNode& node = tree.node(best[i]);
    place[best[i]] = i;
    tokens.mutable_at(i) = node.token;
    parents.mutable_at(i) = node.parent < 0 ? -1 : place[node.parent];
    probabilities.mutable_at(i) = node.probability;
  }
  return py::make_tuple(tokens, parents, probabilities);
}

std::vector<py::tuple> draft(DraftHead& head, const std::vector<Rows>& batch, float min_product,
                             double seconds) {
  std::vector<forerun::HeadRows> rows;
  rows.reserve(batch.size());
  for (const auto& [cached, features, tokens, pages, nodes, depth] : batch) {
    expect_rank(features, 2, "features");
    expect_rank(tokens, 1, "tokens");
    expect_rank(pages, 1, "pages");
    const int size = head.weights().config().feature_size;
    if (features.shape(0) != tokens.shape(0) || features.shape(1) != size) {
      throw std::invalid_argument("features must have shape [" + std::to_string(tokens.shape(0)) +
                                  ", " + std::to_string(size) + "], a row a token");
    }
    rows.push_back({cached,
                    extent(tokens.shape(0)),
                    features.data(),
                    tokens.data(),
                    pages.data(),
                    extent(pages.shape(0)),
                    {nodes, depth, min_product}});
  }
  std::vector<DraftTree> trees;
  {
    py::gil_scoped_release released;
    trees = head.draft(rows, seconds);
  }
  std::vector<py::tuple> out;
  out.reserve(trees.size());
  for (DraftTree& tree : trees) out.push_back(nodes_of(tree));
  return out;
}

}  // namespace

void bind_draft_head(py::module_& module) {
  py::class_<HeadWeights, std::shared_ptr<HeadWeights>>(
      module, "HeadWeights", "Packed weights of a draft head, filled row by row.")
      .def(
          py::init([](int feature_size, int hidden_size, int intermediate_size, int heads,
                      int kv_heads, int head_dim, int vocab_rows, float rms_norm_eps, bool fused,
                      bool passes_norm, bool normed_residual, std::vector<std::int32_t> draft_ids) {
            const int draft_vocab = static_cast<int>(draft_ids.size());
            return std::make_shared<HeadWeights>(
                forerun::HeadConfig{feature_size, hidden_size, intermediate_size, heads, kv_heads,
                                    head_dim, vocab_rows, draft_vocab, rms_norm_eps, fused,
                                    passes_norm, normed_residual},
                std::move(draft_ids));
          }),
          py::kw_only(), py::arg("feature_size"), py::arg("hidden_size"),
          py::arg("intermediate_size"), py::arg("heads"), py::arg("kv_heads"), py::arg("head_dim"),
          py::arg("vocab_rows"), py::arg("rms_norm_eps"), py::arg("fused"), py::arg("passes_norm"),
          py::arg("normed_residual"), py::arg("draft_ids"))
      .def(
          "load_rows",
          [](HeadWeights& weights, const std::string& name, int first_row,
             const Array<std::uint16_t>& values) {
            expect_rank(values, 2, "values");
            const int rows = extent(values.shape(0)), columns = extent(values.shape(1));
            py::gil_scoped_release released;
            weights.load_rows(name, first_row, values.data(), rows, columns);
          },
          py::arg("name"), py::arg("first_row"), py::arg("values").noconvert())
      .def(
          "load_vector",
          [](HeadWeights& weights, const std::string& name, const Array<std::uint16_t>& values) {
            expect_rank(values, 1, "values");
            weights.load_vector(name, values.data(), extent(values.shape(0)));
          },
          py::arg("name"), py::arg("values").noconvert())
      .def("check_complete", &HeadWeights::check_complete)
      .def_property_readonly("weight_bytes", &HeadWeights::weight_bytes);

  py::class_<DraftHead>(module, "DraftHead", "A draft head with its KV cache and threads.")
      .def(py::init(&make_head), py::kw_only(), py::arg("weights"), py::arg("bf16"),
           py::arg("page_size"), py::arg("pages"), py::arg("max_rows"), py::arg("threads"),
           py::arg("cpus"), py::arg("isa"), py::arg("cos").noconvert(), py::arg("sin").noconvert(),
           py::arg("top_k"))
      .def("draft", &draft, py::arg("batch"), py::arg("min_product"), py::arg("seconds"));
}
