#include "buffers.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace py = pybind11;

namespace forerun {
namespace {

// The part of a DLPack tensor that is read here, as https://dmlc.github.io/dlpack lays it out. A
// "dltensor" capsule points at a DLManagedTensor, whose first member this is.
struct DlTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t rank;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;  // in items; null when dense in row-major order
  uint64_t byte_offset;
};

constexpr int32_t kDlCpu = 1;

Kind dlpack_kind(uint8_t code) {
  switch (code) {
    case 0:
      return Kind::kInt;
    case 1:
      return Kind::kUint;
    case 2:
      return Kind::kFloat;
    case 4:
      return Kind::kBfloat;
    case 6:
      return Kind::kBool;
    default:
      return Kind::kOther;
  }
}

Kind numpy_kind(const py::dtype& dtype) {
  if (dtype.attr("name").cast<std::string>() == "bfloat16") return Kind::kBfloat;
  switch (dtype.kind()) {
    case 'b':
      return Kind::kBool;
    case 'i':
      return Kind::kInt;
    case 'u':
      return Kind::kUint;
    case 'f':
      return Kind::kFloat;
    default:
      return Kind::kOther;
  }
}

const char* kind_text(Kind kind) {
  switch (kind) {
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kUint:
      return "uint";
    case Kind::kFloat:
      return "float";
    case Kind::kBfloat:
      return "bfloat";
    default:
      return "opaque";
  }
}

std::string dtype_name(Kind kind, int64_t item_bytes) {
  return kind == Kind::kBool ? "bool" : text(kind_text(kind), item_bytes * 8);
}

template <typename Dimensions>
std::string dimensions_text(const Dimensions& dimensions) {
  std::string joined = "[";
  for (int64_t dimension : dimensions) {
    joined += text(joined.size() > 1 ? ", " : "", dimension);
  }
  return joined + "]";
}

// The items of a shape; where they cannot be counted, more than any tensor has.
template <typename Dimensions>
int64_t product(const Dimensions& dimensions) {
  int64_t items = 1;
  for (int64_t dimension : dimensions) {
    if (__builtin_mul_overflow(items, dimension, &items)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return items;
}

}  // namespace

Buffer::Buffer(std::string name, const py::object& object) : name_(std::move(name)) {
  if (py::isinstance<py::array>(object)) {
    take_numpy(py::reinterpret_borrow<py::array>(object));
  } else if (py::hasattr(object, "__dlpack__")) {
    take_dlpack(object);
  } else {
    throw py::type_error(text(name_, " is a ", Py_TYPE(object.ptr())->tp_name,
                              "; give a numpy array or a CPU tensor that has __dlpack__"));
  }
}

void Buffer::take_numpy(const py::array& array) {
  const py::dtype dtype = array.dtype();
  if (dtype.attr("hasobject").cast<bool>() || dtype.byteorder() == '>') {
    throw std::invalid_argument(text(name_, " has dtype ", py::str(dtype).cast<std::string>(),
                                     "; give plain values in native byte order"));
  }
  owner_ = array;
  data_ = static_cast<std::byte*>(const_cast<void*>(array.data()));
  kind_ = numpy_kind(dtype);
  item_bytes_ = array.itemsize();
  writable_ = array.writeable();
  shape_.assign(array.shape(), array.shape() + array.ndim());
  strides_.assign(array.strides(), array.strides() + array.ndim());
}

void Buffer::take_dlpack(const py::object& object) {
  try {
    owner_ = object.attr("__dlpack__")();
  } catch (py::error_already_set& error) {
    throw std::invalid_argument(text(
        name_, " cannot be shared through DLPack: ", py::str(error.value()).cast<std::string>()));
  }
  if (!PyCapsule_IsValid(owner_.ptr(), "dltensor")) {
    throw std::invalid_argument(
        text(name_, " gave no DLPack capsule; give a numpy array or a torch tensor"));
  }
  // The capsule is kept and never marked as used, so that it frees the tensor itself.
  const auto& tensor = *static_cast<DlTensor*>(PyCapsule_GetPointer(owner_.ptr(), "dltensor"));
  if (tensor.device_type != kDlCpu) {
    throw std::invalid_argument(
        text(name_, " is on a device of DLPack type ", tensor.device_type, "; move it to the CPU"));
  }
  if (tensor.type_lanes != 1 || tensor.type_bits % 8 != 0) {
    throw std::invalid_argument(text(name_, " has elements of ", int{tensor.type_bits},
                                     " bits and ", tensor.type_lanes,
                                     " lanes; give whole-byte scalars"));
  }
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  kind_ = dlpack_kind(tensor.type_code);
  item_bytes_ = tensor.type_bits / 8;
  writable_ = true;
  shape_.assign(tensor.shape, tensor.shape + tensor.rank);
  strides_.resize(tensor.rank);
  int64_t dense = item_bytes_;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    strides_[axis] = tensor.strides != nullptr ? tensor.strides[axis] * item_bytes_ : dense;
    dense *= shape_[axis];
  }
}

int64_t Buffer::size() const { return product(shape_); }

std::string Buffer::shape_text() const { return dimensions_text(shape_); }

std::string Buffer::dtype_text() const { return dtype_name(kind_, item_bytes_); }

void Buffer::expect_rank(int64_t expected, const char* meaning) const {
  if (rank() != expected) {
    throw std::invalid_argument(text(name_, " has shape ", shape_text(), "; expected ", expected,
                                     " dimensions, ", meaning));
  }
}

void Buffer::expect_shape(std::initializer_list<int64_t> expected, const char* meaning) const {
  if (!std::equal(shape_.begin(), shape_.end(), expected.begin(), expected.end())) {
    throw std::invalid_argument(text(name_, " has shape ", shape_text(), "; expected ", meaning,
                                     " = ", dimensions_text(expected)));
  }
}

void Buffer::expect_shape_or_flat(std::initializer_list<int64_t> expected,
                                  const char* meaning) const {
  if (rank() == 1 && shape_[0] == product(expected)) return;
  if (!std::equal(shape_.begin(), shape_.end(), expected.begin(), expected.end())) {
    throw std::invalid_argument(text(name_, " has shape ", shape_text(), "; expected ", meaning,
                                     " = ", dimensions_text(expected), " or the same items flat"));
  }
}

void Buffer::expect_kind(Kind kind, int64_t item_bytes) const {
  if (kind_ != kind || item_bytes_ != item_bytes) {
    throw std::invalid_argument(
        text(name_, " has dtype ", dtype_text(), "; expected ", dtype_name(kind, item_bytes)));
  }
}

void Buffer::expect_writable() const {
  if (!writable_) {
    throw std::invalid_argument(text(name_, " is read-only, but it is an output; give a copy"));
  }
}

void Buffer::expect_contiguous(int64_t axis) const {
  if (size() == 0) return;
  int64_t dense = item_bytes_;
  for (int64_t inner = rank() - 1; inner >= axis; --inner) {
    if (shape_[inner] != 1 && strides_[inner] != dense) {
      throw std::invalid_argument(
          text(name_, " has shape ", shape_text(), " and strides ", dimensions_text(strides_),
               " bytes; it must be contiguous in row-major order",
               axis > 0 ? " within each slot" : "", " (numpy.ascontiguousarray, .contiguous())"));
    }
    dense *= shape_[inner];
  }
}

void Buffer::expect_aligned(size_t alignment) const {
  if (reinterpret_cast<uintptr_t>(data_) % alignment != 0) {
    throw std::invalid_argument(
        text(name_, " does not start at a multiple of ", alignment, " bytes; give a copy"));
  }
}

MutableIndexView Buffer::index_view() const {
  if (kind_ != Kind::kInt || (item_bytes_ != 4 && item_bytes_ != 8)) {
    throw std::invalid_argument(
        text(name_, " has dtype ", dtype_text(), "; expected int32 or int64"));
  }
  expect_contiguous();
  if (size() > 0) expect_aligned(item_bytes_);
  return MutableIndexView(name_, data_, size(), rank() == 2 ? shape_[1] : 0, item_bytes_ == 8);
}

IndexView Buffer::indices() const { return index_view(); }

MutableIndexView Buffer::mutable_indices() const {
  expect_writable();
  return index_view();
}

bool Buffer::overlaps(const Buffer& other) const {
  const auto range = [](const Buffer& buffer) {
    const std::byte* first = buffer.data_;
    const std::byte* last = buffer.data_ + buffer.item_bytes_;
    for (int64_t axis = 0; axis < buffer.rank(); ++axis) {
      const int64_t reach = (buffer.shape_[axis] - 1) * buffer.strides_[axis];
      (reach < 0 ? first : last) += reach;
    }
    return std::make_pair(first, last);
  };
  if (size() == 0 || other.size() == 0) return false;
  const auto [first, last] = range(*this);
  const auto [other_first, other_last] = range(other);
  return first < other_last && other_first < last;
}

void expect_disjoint(std::initializer_list<const Buffer*> outputs,
                     std::initializer_list<const Buffer*> inputs) {
  std::vector<const Buffer*> others(inputs);
  for (const Buffer* output : outputs) {
    for (const Buffer* other : others) {
      if (output->overlaps(*other)) {
        throw std::invalid_argument(text(output->name(), " shares memory with ", other->name(),
                                         "; give the output memory of its own"));
      }
    }
    others.push_back(output);
  }
}

}  // namespace forerun
