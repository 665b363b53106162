// NumPy arrays as the entry points take them.
#pragma once

#include <pybind11/numpy.h>

#include <stdexcept>
#include <string>

namespace forerun_bindings {

template <class T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

// Throws std::invalid_argument for another number of dimensions.
template <class T>
void expect_rank(const Array<T>& array, int rank, const char* name) {
  if (array.ndim() != rank) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(array.ndim()) +
                                " dimensions; it must have " + std::to_string(rank));
  }
}

inline int extent(pybind11::ssize_t n) { return static_cast<int>(n); }

// The rows of a table of angles for heads of `head_dim` elements.
inline int expect_rotations(const Array<float>& cos, const Array<float>& sin, int head_dim) {
  expect_rank(cos, 2, "cos");
  expect_rank(sin, 2, "sin");
  const int half = head_dim / 2;
  if (cos.shape(1) != half || sin.shape(1) != half || sin.shape(0) != cos.shape(0)) {
    throw std::invalid_argument("cos and sin must both have shape [max_context, " +
                                std::to_string(half) + "]");
  }
  return extent(cos.shape(0));
}

}  // namespace forerun_bindings
