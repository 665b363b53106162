// The engine: a model, its KV cache, and the forward.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "forerun/forward.h"
#include "forerun/require.h"

namespace py = pybind11;
using forerun::Engine;
using forerun::Model;
using forerun_bindings::Array;
using forerun_bindings::expect_rank;
using forerun_bindings::expect_rotations;
using forerun_bindings::extent;

namespace {

std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, bool bf16, int page_size,
                                    int pages, int max_rows, int threads, std::vector<int> cpus,
                                    std::string isa, const Array<float>& cos,
                                    const Array<float>& sin) {
  const int max_context = expect_rotations(cos, sin, model->config().head_dim);
  forerun::ForwardConfig config{bf16,        page_size, pages,           max_rows,
                                max_context, threads,   std::move(cpus), std::move(isa)};
  py::gil_scoped_release released;
  return std::make_unique<Engine>(std::move(model), config, cos.data(), sin.data());
}

// (length, tokens, parents or None, pages, first predicted row)
using Row = std::tuple<int, Array<std::int32_t>, std::optional<Array<std::int32_t>>,
                       Array<std::int32_t>, int>;

py::tuple forward(Engine& engine, const std::vector<Row>& batch, const std::vector<int>& taps) {
  std::vector<forerun::NewRows> rows;
  rows.reserve(batch.size());
  for (const auto& [length, tokens, parents, pages, first_predicted] : batch) {
    expect_rank(tokens, 1, "tokens");
    expect_rank(pages, 1, "pages");
    if (parents) expect_rank(*parents, 1, "parents");
    if (parents && parents->shape(0) != tokens.shape(0)) {
      throw std::invalid_argument("parents has " + std::to_string(parents->shape(0)) +
                                  " entries for " + std::to_string(tokens.shape(0)) + " tokens");
    }
    rows.push_back({length, extent(tokens.shape(0)), pages.data(), extent(pages.shape(0)),
                    tokens.data(), parents ? parents->data() : nullptr, first_predicted});
  }
  forerun::ForwardOut out;
  {
    py::gil_scoped_release released;
    engine.forward(rows, taps, out);
  }
  Array<std::int32_t> predictions(static_cast<py::ssize_t>(out.predictions.size()));
  std::memcpy(predictions.mutable_data(), out.predictions.data(),
              out.predictions.size() * sizeof(std::int32_t));
  if (taps.empty()) return py::make_tuple(predictions, py::none());
  const py::ssize_t h = engine.model().config().hidden_size,
                    t = static_cast<py::ssize_t>(taps.size());
  Array<std::uint16_t> hidden({t, static_cast<py::ssize_t>(out.hidden.size()) / (t * h), h});
  std::memcpy(hidden.mutable_data(), out.hidden.data(), out.hidden.size() * sizeof(std::uint16_t));
  return py::make_tuple(predictions, hidden);
}

void compact(Engine& engine, const Array<std::int32_t>& pages, int prefix,
             const Array<std::int32_t>& rows) {
  expect_rank(pages, 1, "pages");
  expect_rank(rows, 1, "rows");
  const int num_pages = extent(pages.shape(0)), count = extent(rows.shape(0));
  py::gil_scoped_release released;
  engine.compact(pages.data(), num_pages, prefix, rows.data(), count);
}

void poison(Engine& engine, int page) {
  const auto& g = engine.cache().geometry();
  forerun::require_value(page >= 0 && page < g.pages, "page", page, "0 to ", g.pages - 1);
  py::gil_scoped_release released;
  for (int i = 0; i < g.page_size; ++i) engine.cache().poison(page * g.page_size + i);
}

// The packed keys and values of one token as bytes, to compare caches bit for bit.
py::bytes token_kv(Engine& engine, int slot) {
  const forerun::KvCache& cache = engine.cache();
  const auto& g = cache.geometry();
  const int slots = g.pages * g.page_size;
  forerun::require_value(slot >= 0 && slot < slots, "slot", slot, "0 to ", slots - 1);
  std::string out;
  for (int layer = 0; layer < g.layers; ++layer) {
    for (int head = 0; head < g.kv_heads; ++head) {
      for (const bool value : {false, true}) {
        for (int i = 0; i < g.head_dim; ++i) {
          const auto* element = cache.element(layer, slot, head, i, value);
          out.append(reinterpret_cast<const char*>(element), g.element_bytes());
        }
      }
    }
  }
  return py::bytes(out);
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<Model, std::shared_ptr<Model>>(
      module, "Model", "Packed weights of a model of the Llama family, filled row by row.")
      .def(py::init([](int vocab_rows, int vocab_size, int hidden_size, int intermediate_size,
                       int layers, int heads, int kv_heads, int head_dim, float rms_norm_eps,
                       bool tied, bool qk_norm, int window) {
             return std::make_shared<Model>(forerun::ModelConfig{
                 vocab_rows, vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads,
                 head_dim, rms_norm_eps, tied, qk_norm, window});
           }),
           py::kw_only(), py::arg("vocab_rows"), py::arg("vocab_size"), py::arg("hidden_size"),
           py::arg("intermediate_size"), py::arg("layers"), py::arg("heads"), py::arg("kv_heads"),
           py::arg("head_dim"), py::arg("rms_norm_eps"), py::arg("tied"), py::arg("qk_norm"),
           py::arg("window"))
      .def(
          "load_rows",
          [](Model& model, const std::string& name, int layer, int first_row,
             const Array<std::uint16_t>& values) {
            expect_rank(values, 2, "values");
            const int rows = extent(values.shape(0)), columns = extent(values.shape(1));
            py::gil_scoped_release released;
            model.load_rows(name, layer, first_row, values.data(), rows, columns);
          },
          py::arg("name"), py::arg("layer"), py::arg("first_row"), py::arg("values").noconvert())
      .def(
          "load_vector",
          [](Model& model, const std::string& name, int layer, const Array<std::uint16_t>& values) {
            expect_rank(values, 1, "values");
            model.load_vector(name, layer, values.data(), extent(values.shape(0)));
          },
          py::arg("name"), py::arg("layer"), py::arg("values").noconvert())
      .def("check_complete", &Model::check_complete)
      .def_property_readonly("weight_bytes", &Model::weight_bytes);

  py::class_<Engine>(module, "Engine", "A model with its KV cache and threads.")
      .def(py::init(&make_engine), py::kw_only(), py::arg("model"), py::arg("bf16"),
           py::arg("page_size"), py::arg("pages"), py::arg("max_rows"), py::arg("threads"),
           py::arg("cpus"), py::arg("isa"), py::arg("cos").noconvert(), py::arg("sin").noconvert())
      .def("forward", &forward, py::arg("batch"), py::arg("taps"))
      .def("compact", &compact, py::arg("pages").noconvert(), py::arg("prefix"),
           py::arg("rows").noconvert())
      .def("poison", &poison, py::arg("page"))
      .def("token_kv", &token_kv, py::arg("slot"));
}
