#include "forerun/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace forerun {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

HugeBuffer::HugeBuffer(std::size_t bytes, bool huge) : bytes_(bytes) {
  if (bytes == 0) return;
  // One huge page more, so that the start can be aligned.
  mapped_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw std::bad_alloc();
  }
  const auto start = reinterpret_cast<std::uintptr_t>(base_);
  data_ = reinterpret_cast<void*>((start + kHugePage - 1) / kHugePage * kHugePage);
  if (huge)
    madvise(data_, mapped_ - kHugePage, MADV_HUGEPAGE);  // a wish: failure costs speed alone
}

HugeBuffer::~HugeBuffer() {
  if (base_ != nullptr) munmap(base_, mapped_);
}

}  // namespace forerun
