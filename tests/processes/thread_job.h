// A job whose ranks are threads of this process, one of which may have a faulty communicator.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "processes/c10d/c10d_communicator.h"
#include "processes/job/job.h"
#include "tests/testing/faulty_communicator.h"
#include "tests/testing/time_limits.h"

namespace dtensor::testing {

using std::chrono::milliseconds;

constexpr int64_t kRanks = 3;
// The deadline of a job: far above kAtOnce, so that a test that waits for it fails.
constexpr milliseconds kTimeout{20000};

struct Outcome {
  std::vector<std::string> errors;  // by rank; "" if there was none
  std::vector<bool> right;          // by rank: no result was wrong
  int64_t fired = 0;
  milliseconds took{0};
};

// Runs `body` on every rank. Its result says whether all that the rank computed was right.
inline Outcome run_job(int64_t faulty_rank, Fault fault, const std::function<bool(const World&)>& body,
                       milliseconds timeout = kTimeout) {
  Outcome outcome;
  outcome.errors.resize(kRanks);
  std::vector<char> right(kRanks);
  std::atomic<int64_t> fired{0};
  fault.on_fire = [&] { ++fired; };
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const c10::Device cpu(c10::DeviceType::CPU);
        auto job = std::make_shared<internal::Job>(store, rank, kRanks, timeout);
        job->one_host();
        World world = World::of_process(kRanks, rank, cpu, absl::StrCat("threads, rank ", rank),
                                        internal::make_c10d_communicator(std::move(job), "gloo", cpu));
        if (rank == faulty_rank) world = faulty_world(world, fault);
        right[rank] = body(world);
      } catch (const c10::Error& e) {
        outcome.errors[rank] = e.what_without_backtrace();
      } catch (const std::exception& e) {
        outcome.errors[rank] = e.what();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  outcome.took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  outcome.right.assign(right.begin(), right.end());
  outcome.fired = fired;
  return outcome;
}

}  // namespace dtensor::testing
