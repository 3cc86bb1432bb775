// A collective that was begun and may still be under way, or one that the first wait() begins.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace dtensor::internal {

class CommWork {
 public:
  // `finish` waits for the collective and puts the results where they belong.
  explicit CommWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  // The collective has not begun: `run` begins it. All ranks must then call wait() alike.
  static std::shared_ptr<CommWork> deferred(std::function<void()> run) {
    return std::shared_ptr<CommWork>(new_deferred(std::move(run)));
  }
  // The same, for a shared_ptr with a deleter of its own.
  static CommWork* new_deferred(std::function<void()> run) {
    auto* work = new CommWork(std::move(run));
    work->is_deferred_ = true;
    return work;
  }
  CommWork(const CommWork&) = delete;
  CommWork& operator=(const CommWork&) = delete;

  // Returns when the results are there; at once if they have been.
  // Errors: those of the collective, every time. Thread-safe.
  void wait() {
    if (!done()) wait_slowly();
  }
  bool done() const { return done_.load(std::memory_order_acquire); }  // wait() has succeeded
  // wait() would begin the collective.
  bool needs_all_ranks() const { return is_deferred_ && !done() && !failed_.load(std::memory_order_acquire); }

 private:
  void wait_slowly() {
    std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    if (error_ == nullptr) {
      try {
        finish_();
        finish_ = nullptr;
        done_.store(true, std::memory_order_release);
        return;
      } catch (...) {
        error_ = std::current_exception();
        finish_ = nullptr;
        failed_.store(true, std::memory_order_release);
      }
    }
    std::rethrow_exception(error_);
  }

  bool is_deferred_ = false;  // does not change once the work is shared
  std::mutex mutex_;
  std::function<void()> finish_;  // guarded by mutex_
  std::exception_ptr error_;      // guarded by mutex_
  std::atomic<bool> done_{false};
  std::atomic<bool> failed_{false};
};

}  // namespace dtensor::internal
