// A collective that was begun and may still be under way.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

namespace dtensor {

class CommWork {
 public:
  // `finish` waits for the collective and puts the results where they belong.
  explicit CommWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  CommWork(const CommWork&) = delete;
  CommWork& operator=(const CommWork&) = delete;

  // Returns when the results are there; at once if they have been.
  // Errors: those of the collective, every time. Thread-safe.
  void wait() {
    if (!done()) wait_slowly();
  }
  bool done() const { return done_.load(std::memory_order_acquire); }  // wait() has succeeded

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
      }
    }
    std::rethrow_exception(error_);
  }

  std::mutex mutex_;
  std::function<void()> finish_;  // guarded by mutex_
  std::exception_ptr error_;      // guarded by mutex_
  std::atomic<bool> done_{false};
};

}  // namespace dtensor
