// Tensors from Python, without a copy: numpy arrays, and whatever else has __dlpack__ (torch).
//
// A Buffer keeps its tensor alive, names the argument that it came from, and is what native code
// is reached through: each expect_... throws std::invalid_argument (ValueError in Python) with the
// argument, what was found and what is expected. An entry point checks its buffers while it holds
// the GIL, releases it for the work, and drops the buffers after it has the GIL again:
//
//   const Buffer q("q", q_object);
//   q.expect_shape({rows, heads, dim}, "[T, H, D]");
//   q.expect_kind(Kind::kFloat, 4);
//   expect_disjoint({&out}, {&q});
//   const float* values = q.data<float>();
//   py::gil_scoped_release released;
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "forerun/index_view.h"

namespace forerun {

enum class Kind { kBool, kInt, kUint, kFloat, kBfloat, kOther };

class Buffer {
 public:
  // Throws pybind11::type_error when `object` is no tensor, std::invalid_argument when it is not a
  // CPU tensor of plain values.
  Buffer(std::string name, const pybind11::object& object);

  const std::string& name() const { return name_; }
  Kind kind() const { return kind_; }
  int64_t item_bytes() const { return item_bytes_; }
  int64_t rank() const { return static_cast<int64_t>(shape_.size()); }
  int64_t shape(int64_t axis) const { return shape_[axis]; }
  int64_t stride_bytes(int64_t axis) const { return strides_[axis]; }
  int64_t size() const;  // items

  // `meaning` writes the dimensions as their documentation does: "[bs, ndt]".
  void expect_rank(int64_t rank, const char* meaning) const;
  void expect_shape(std::initializer_list<int64_t> shape, const char* meaning) const;
  void expect_shape_or_flat(std::initializer_list<int64_t> shape, const char* meaning) const;
  void expect_kind(Kind kind, int64_t item_bytes) const;
  void expect_writable() const;
  // Dense in row-major order, from `axis` inwards.
  void expect_contiguous(int64_t axis = 0) const;

  std::byte* bytes() const { return data_; }
  // Dense, aligned values; the element type is the caller's to check.
  template <typename T>
  T* data() const {
    expect_contiguous();
    expect_aligned(alignof(T));
    return reinterpret_cast<T*>(data_);
  }

  // Dense int32 or int64 values, read only or (checked) writable.
  IndexView indices() const;
  MutableIndexView mutable_indices() const;

  bool overlaps(const Buffer& other) const;

 private:
  void take_numpy(const pybind11::array& array);
  void take_dlpack(const pybind11::object& object);
  void expect_aligned(size_t alignment) const;
  MutableIndexView index_view() const;
  std::string shape_text() const;
  std::string dtype_text() const;

  std::string name_;
  pybind11::object owner_;
  std::byte* data_ = nullptr;
  Kind kind_ = Kind::kOther;
  int64_t item_bytes_ = 0;
  bool writable_ = false;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;  // bytes
};

// Throws when an output shares memory with another argument: values that were checked would change
// while they are used.
void expect_disjoint(std::initializer_list<const Buffer*> outputs,
                     std::initializer_list<const Buffer*> inputs);

}  // namespace forerun
