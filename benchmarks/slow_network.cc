#include "benchmarks/slow_network.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "benchmarks/loopback_gloo.h"

namespace dtensor::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

// Done when its network says so.
class SlowWork final : public c10d::Work {
 public:
  SlowWork(int rank, c10::intrusive_ptr<c10d::Work> work, double seconds)
      : Work(rank, c10d::OpType::ALLTOALL_BASE),
        seconds(seconds),
        work_(std::move(work)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  // Waits for Gloo.
  std::exception_ptr gloo_error() {
    try {
      work_->wait();
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }
  void end(std::exception_ptr error) {
    finish(error);
    error ? future_->setError(error) : future_->markCompleted();
  }

  const double seconds;  // that the link takes

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};
using SlowWorkPtr = c10::intrusive_ptr<SlowWork>;

class SlowNetwork final : public c10d::Backend {
 public:
  SlowNetwork(c10::intrusive_ptr<c10d::Backend> gloo, double bytes_per_second)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        bytes_per_second_(bytes_per_second),
        link_([this] { run_link(); }) {}
  ~SlowNetwork() override {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    link_.join();
  }

  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes,
                                               std::vector<int64_t>& in_sizes,
                                               const c10d::AllToAllOptions& options) override {
    // What ranks send to themselves is in the tensor only if sizes are even.
    const double from_others =
        static_cast<double>(out.nbytes()) * (out_sizes.empty() ? (getSize() - 1.0) / getSize() : 1.0);
    auto work = c10::make_intrusive<SlowWork>(getRank(), gloo_->alltoall_base(out, in, out_sizes, in_sizes, options),
                                              from_others / bytes_per_second_);
    {
      std::lock_guard lock(mutex_);
      works_.push_back(work);
    }
    changed_.notify_all();
    return work;
  }

 private:
  void run_link() {
    auto free_at = Clock::now();
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ended_ || !works_.empty(); });
      if (works_.empty()) return;
      const SlowWorkPtr work = works_.front();
      works_.pop_front();
      lock.unlock();
      free_at = std::max(free_at, Clock::now()) +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(work->seconds));
      const std::exception_ptr error = work->gloo_error();
      std::this_thread::sleep_until(free_at);
      work->end(error);
    }
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const double bytes_per_second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SlowWorkPtr> works_;
  bool ended_ = false;
  std::thread link_;
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_slow_network(int rank, int size, const std::string& store,
                                                         double bytes_per_second) {
  const auto file = c10::make_intrusive<c10d::FileStore>(store, size);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(file, rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<SlowNetwork>(make_loopback_gloo(file, rank, size), bytes_per_second));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace dtensor::benchmarks
