#include "forerun/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

#include "forerun/require.h"

namespace forerun {
namespace {

// Long enough to bridge the gap between two steps, short enough to leave the
// processor to others when there is no work.
constexpr int kSpinsBeforeSleep = 4000;
// After this many the processor may be needed by the thread that is waited for.
constexpr int kSpinsBeforeYield = 20000;

inline void pause() { __builtin_ia32_pause(); }

}  // namespace

ThreadPool::ThreadPool(int threads, std::vector<int> cpus, std::function<void()> on_start,
                       std::function<void()> on_stop)
    : size_(threads),
      cpus_(std::move(cpus)),
      on_start_(std::move(on_start)),
      on_stop_(std::move(on_stop)) {
  require_value(threads >= 1, "threads", threads, "at least 1");
  require(cpus_.empty() || static_cast<int>(cpus_.size()) >= threads, "cpus has ", cpus_.size(),
          " entries for ", threads, " threads; give one a thread or none");
  for (int t = 1; t < threads; ++t) threads_.emplace_back([this, t] { loop(t); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    region_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::pin(int thread) {
  if (cpus_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_[thread], &set);
  // Refused where the processor was taken from us meanwhile: run unpinned.
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void ThreadPool::loop(int thread) {
  pin(thread);
  on_start_();
  unsigned seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpinsBeforeSleep && region_.load(std::memory_order_acquire) == seen;
         ++spin) {
      pause();
    }
    if (region_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return region_.load(std::memory_order_acquire) != seen; });
    }
    ++seen;
    if (stop_) break;
    (*work_)(thread);
    barrier();
  }
  on_stop_();
}

void ThreadPool::run(const std::function<void(int)>& work) {
  if (caller_ != std::this_thread::get_id()) {
    caller_ = std::this_thread::get_id();
    on_start_();
  }
  // The caller gets its processors back, or every thread and process that it
  // starts from now on would share one of them.
  cpu_set_t before;
  const bool restore =
      !cpus_.empty() && pthread_getaffinity_np(pthread_self(), sizeof before, &before) == 0;
  pin(0);
  work_ = &work;
  if (size_ > 1) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      region_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  work(0);
  barrier();
  if (restore) pthread_setaffinity_np(pthread_self(), sizeof before, &before);
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const unsigned phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; ++spin) {
    if (spin < kSpinsBeforeYield) {
      pause();
    } else {
      sched_yield();
    }
  }
}

}  // namespace forerun
