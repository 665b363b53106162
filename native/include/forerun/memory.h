// Large zeroed buffers on huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <utility>

namespace forerun {

// Owns `bytes` of zeroed memory, 2 MiB aligned, resident only where touched.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Throws std::bad_alloc. `huge` asks for transparent huge pages.
  explicit HugeBuffer(std::size_t bytes, bool huge = true);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept { swap(other); }
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(HugeBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* base_ = nullptr;
  std::size_t mapped_ = 0;
};

}  // namespace forerun
