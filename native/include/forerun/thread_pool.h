// A pool of threads for one parallel region after another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace forerun {

// Owns size() - 1 threads; the caller of run() is the remaining one, number 0.
// Threads are pinned, each to one processor of the list, the caller as long as
// run() takes. Not for concurrent run() calls.
class ThreadPool {
 public:
  // `cpus` may be empty (no pinning) or hold at least `threads` processors.
  // Throws std::invalid_argument otherwise.
  ThreadPool(int threads, std::vector<int> cpus, std::function<void()> on_start,
             std::function<void()> on_stop);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Runs work(thread) on every thread and returns when all are done. Work must
  // not throw.
  void run(const std::function<void(int)>& work);

  // Within run(): waits until every thread is here.
  void barrier();

 private:
  void loop(int thread);
  void pin(int thread);

  const int size_;
  const std::vector<int> cpus_;
  const std::function<void()> on_start_, on_stop_;
  std::vector<std::thread> threads_;

  const std::function<void(int)>* work_ = nullptr;
  bool stop_ = false;
  std::thread::id caller_;
  std::mutex mutex_;
  std::condition_variable wake_;
  alignas(64) std::atomic<unsigned> region_{0};  // counts run() calls
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};  // counts barriers
};

}  // namespace forerun
