#include "forerun/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "forerun/memory.h"
#include "forerun/thread_pool.h"

namespace forerun {
namespace {

// Words from those that are read to those that are fetched meanwhile. Left to the processor's own
// prefetching, a virtual Xeon read an eighth less than a step of the engine.
constexpr std::size_t kAhead = 2048 / sizeof(std::uint64_t);

}  // namespace

double read_bandwidth(int threads, const std::vector<int>& cpus, std::size_t bytes, int repeats) {
  if (bytes < 4096 || repeats < 1)
    throw std::invalid_argument("bytes must be at least 4096 and repeats at least 1");
  HugeBuffer buffer(bytes);
  std::memset(buffer.as<void>(), 1, bytes);
  ThreadPool pool(threads, cpus, [] {}, [] {});
  const std::size_t words = bytes / sizeof(std::uint64_t) / pool.size() / 16 * 16;
  std::vector<std::uint64_t> sums(pool.size() * std::size_t{16});
  double best = 0;
  for (int r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int thread) {
      const std::uint64_t* from = buffer.as<std::uint64_t>() + words * thread;
      std::uint64_t sum[16] = {};
      for (std::size_t i = 0; i < words; i += 16) {
        __builtin_prefetch(from + i + kAhead);
        __builtin_prefetch(from + i + kAhead + 8);
        for (int lane = 0; lane < 16; ++lane) sum[lane] += from[i + lane];
      }
      std::copy(sum, sum + 16, sums.begin() + thread * std::size_t{16});
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(words) * 8 * pool.size() / time.count() / 1e9);
  }
  // The sums are returned to nobody, but must look used.
  volatile std::uint64_t sink = sums[0];
  (void)sink;
  return best;
}

}  // namespace forerun
