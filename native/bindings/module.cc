// The Python module forerun._native: the entry points alone.
#include <pybind11/pybind11.h>

namespace py = pybind11;

void bind_tree_ops(py::module_& module);

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native engine of forerun.";
  bind_tree_ops(module);
}
