// Dense arrays of int32 or int64, read and written as int64.
//
// The tree operations take every index argument in either width. One branch an element is cheaper
// than a converting copy, and readable beside the 2^n instances that templates would need.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

#include "forerun/require.h"

namespace forerun {

// Reads an array of `size` values that it does not own. `columns` is the length of the last of two
// dimensions, or 0; errors name a value by it: name[row, column] or name[index].
class IndexView {
 public:
  IndexView(std::string name, void* data, int64_t size, int64_t columns, bool is_int64)
      : name_(std::move(name)), data_(data), size_(size), columns_(columns), is_int64_(is_int64) {}

  int64_t size() const { return size_; }
  const std::string& name() const { return name_; }

  int64_t operator[](int64_t i) const {
    return is_int64_ ? static_cast<const int64_t*>(data_)[i]
                     : static_cast<const int32_t*>(data_)[i];
  }

  // The value at `i`; std::invalid_argument unless low <= value <= high.
  int64_t checked(int64_t i, int64_t low, int64_t high, const char* remedy) const {
    const int64_t value = (*this)[i];
    if (value < low || value > high) {
      throw std::invalid_argument(
          text(where(i), " is ", value, ", outside ", low, "..", high, "; ", remedy));
    }
    return value;
  }

  std::string where(int64_t i) const {
    return columns_ > 0 ? text(name_, "[", i / columns_, ", ", i % columns_, "]")
                        : text(name_, "[", i, "]");
  }

  // Throws std::invalid_argument when `value` does not fit the element type.
  void expect_holds(int64_t value) const {
    if (!is_int64_ && value != static_cast<int32_t>(value)) {
      throw std::invalid_argument(
          text(name_, " is int32 and cannot hold ", value, "; give it as int64"));
    }
  }

 protected:
  std::string name_;
  void* data_;
  int64_t size_;
  int64_t columns_;
  bool is_int64_;
};

// An IndexView that may be written, too.
class MutableIndexView : public IndexView {
 public:
  using IndexView::IndexView;

  // Throws std::invalid_argument instead of truncating.
  void set(int64_t i, int64_t value) const {
    if (is_int64_) {
      static_cast<int64_t*>(data_)[i] = value;
    } else {
      expect_holds(value);
      static_cast<int32_t*>(data_)[i] = static_cast<int32_t>(value);
    }
  }
};

}  // namespace forerun
