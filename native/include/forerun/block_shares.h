// Which thread computes which blocks of a product.
//
// Every thread has a share of its own, and the memory that it reads is near it. It
// takes a few blocks at a time, and when its share is done it helps the next few
// threads with theirs: processors are rarely all as fast, and whoever is done
// first would only wait. An output's bits do not depend on who computes it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "forerun/kernels.h"

namespace forerun {

// For the threads of one pool, which pass a barrier between two products. All of
// them compute every product, one after the other.
class BlockShares {
 public:
  explicit BlockShares(int threads) : threads_(threads), shares_(new Share[threads]) {}

  // Computes thread's part of g, a product with n outputs, by `kernels`.
  void compute(int thread, Gemm g, int n, const Kernels& kernels) {
    Share& own = shares_[thread];
    const unsigned product = own.products++;
    // Nobody looks at the other count before all are done with this product.
    own.taken[(product + 1) % 2].store(0, std::memory_order_relaxed);
    for (int i = 0; i < std::min(threads_, 1 + kHelped); ++i) {
      const int owner = (thread + i) % threads_;
      std::atomic<int>& taken = shares_[owner].taken[product % 2];
      share_blocks(g, n, owner, threads_);
      const int end = g.block_end, begin = g.block_begin;
      const int part = part_of(end - begin, g, kernels);
      for (Part next; (next = take(taken, end - begin, part)).first < end - begin;) {
        g.block_begin = begin + next.first;
        g.block_end = std::min(end, g.block_begin + next.count);
        kernels.gemm(g);
      }
    }
  }

 private:
  static constexpr int kHelped = 3;  // threads that one helps: looking for work takes time too
  static constexpr std::size_t kInCaches = 4 << 20;  // bytes of rows, with room for weights

  struct Part {
    int first, count;
  };

  struct alignas(64) Share {
    std::atomic<int> taken[2] = {};  // blocks, of this product and of the next one
    unsigned products = 0;
  };

  // Blocks to take at once. All rows are read anew for each part: where caches do not
  // hold them, for a few parts of a share alone.
  static int part_of(int blocks, const Gemm& g, const Kernels& kernels) {
    const std::size_t bytes = g.rows * g.lda * kernels.act_bytes;
    if (bytes <= kInCaches) return kernels.group;
    return std::max(kernels.group, blocks / 4 / kernels.group * kernels.group);
  }

  // Takes the next `count` blocks; of the last ones a third, so that threads are done at nearly
  // the same time. Starts at `blocks` or behind where nothing is left.
  static Part take(std::atomic<int>& taken, int blocks, int count) {
    const int seen = taken.load(std::memory_order_relaxed);
    if (seen >= blocks) return {seen, 0};
    if (blocks - seen <= count) count = std::max(2, count / 3 / 2 * 2);  // gate and up are a pair
    return {taken.fetch_add(count, std::memory_order_relaxed), count};
  }

  const int threads_;
  std::unique_ptr<Share[]> shares_;
};

}  // namespace forerun
