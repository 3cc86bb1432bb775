// Calls over one group that two threads of each rank make. Runs in every rank's process.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mul.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "tests/processes/job_world.h"
#include "tests/processes/rank_flag.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

// Large enough for an all-reduce in two exchanges, each with first messages of its own.
at::Tensor large_values(int64_t k) { return at::arange(1000 * 16, at::kDouble).view({1000, 16}).mul(k + 1); }

at::Tensor large_partial(const DeviceMesh& mesh, int64_t k) {
  return redistribute(distribute_tensor(large_values(k), mesh, {Replicate()}), {Partial()});
}

TEST_CASE("two threads: a call of one runs after all stages of the call that the other waits in") {
  const DeviceMesh mesh(job_world(), {2}, {"tp"});
  const at::Tensor a = large_partial(mesh, 0), b = large_partial(mesh, 1);
  CHECK(at::equal(full_tensor(a), large_values(0)));  // the ranks have met
  RankFlag both_made("both made");
  at::Tensor first, second;
  if (own_rank() == 0) {
    std::thread waits([&] { first = to_local(redistribute(a, {Replicate()}))[0]; });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it has begun, and rank 1 has not come
    const at::Tensor arriving = redistribute(b, {Replicate()}, {.async_op = true});
    both_made.raise();
    waits.join();
    second = to_local(arriving)[0];
  } else {
    REQUIRE(both_made.wait(std::chrono::seconds(15)));
    first = to_local(redistribute(a, {Replicate()}))[0];
    second = to_local(redistribute(b, {Replicate()}))[0];
  }
  CHECK(at::equal(first, large_values(0)));
  CHECK(at::equal(second, large_values(1)));
}

// Lets two threads do their parts of a loop in turns.
class Turns {
 public:
  template <typename Body>
  void take(int64_t k, Body body) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ == k; });
    body();
    ++next_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t next_ = 0;
};

TEST_CASE("two threads: alternating calls, read at any time, give the results of one thread") {
  constexpr int64_t kCalls = 40;
  const DeviceMesh mesh(job_world(), {2}, {"tp"});
  std::vector<at::Tensor> inputs, results(kCalls);
  for (int64_t k = 0; k < kCalls; ++k) inputs.push_back(large_partial(mesh, k));
  Turns turns;
  const auto run = [&](int64_t parity) {
    for (int64_t k = parity; k < kCalls; k += 2) {
      at::Tensor result;
      turns.take(k, [&] { result = redistribute(inputs[k], {Replicate()}, {.async_op = k % 3 != 0}); });
      results[k] = to_local(result)[0];  // while the other thread makes its next call
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (int64_t k = 0; k < kCalls; ++k) CHECK(at::equal(results[k], large_values(k)));
}

}  // namespace
}  // namespace dtensor
