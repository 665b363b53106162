// The Python module forerun._native: the entry points alone.
#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_attention(py::module_& module);
void bind_draft_head(py::module_& module);
void bind_engine(py::module_& module);
void bind_isa(py::module_& module);
void bind_tree_ops(py::module_& module);

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native engine of forerun.";
  bind_isa(module);
  bind_engine(module);
  bind_draft_head(module);
  bind_attention(module);
  bind_tree_ops(module);
}
