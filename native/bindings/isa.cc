// Instruction set levels and the speed of memory.
#include "forerun/isa.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "forerun/bandwidth.h"

namespace py = pybind11;
using forerun::CpuFeatures;

void bind_isa(py::module_& module) {
  py::class_<CpuFeatures>(module, "CpuFeatures",
                          "What the processor reports and the system allows.")
      .def(py::init<>())
      .def_readwrite("x86_64_v2", &CpuFeatures::x86_64_v2)
      .def_readwrite("avx2", &CpuFeatures::avx2)
      .def_readwrite("os_avx", &CpuFeatures::os_avx)
      .def_readwrite("avx512", &CpuFeatures::avx512)
      .def_readwrite("os_avx512", &CpuFeatures::os_avx512)
      .def_readwrite("avx512_bf16", &CpuFeatures::avx512_bf16)
      .def_readwrite("slow_bf16_products", &CpuFeatures::slow_bf16_products)
      .def_readwrite("amx", &CpuFeatures::amx)
      .def_readwrite("os_amx", &CpuFeatures::os_amx)
      .def_readwrite("amx_palette", &CpuFeatures::amx_palette)
      .def_readwrite("amx_permission", &CpuFeatures::amx_permission);
  module.def("detect_cpu", &forerun::detect_cpu, py::call_guard<py::gil_scoped_release>(),
             "Asks the processor and the system; requests the permission for AMX tiles.");
  module.def(
      "isa_levels",
      [](const CpuFeatures& cpu) {
        py::list levels;
        for (const forerun::IsaLevel& level : forerun::isa_levels(cpu)) {
          levels.append(py::make_tuple(level.name, level.available, level.reason));
        }
        return levels;
      },
      py::arg("cpu"), "All levels, best first, as (name, available, the gate that failed).");
  module.def("select_isa", &forerun::select_isa, py::arg("cpu"), py::arg("forced") = "",
             "The best available level, or `forced`; ValueError if that one cannot run.");
  module.def("read_bandwidth", &forerun::read_bandwidth, py::call_guard<py::gil_scoped_release>(),
             py::arg("threads"), py::arg("cpus"), py::arg("bytes"), py::arg("repeats"),
             "The best of `repeats` reads of `bytes` of memory with all threads, in GB/s.");
}
