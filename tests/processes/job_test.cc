// What a job does in its own processes. Work that runs on a device, without a device: which thread notices that it does
// not end, and that its groups are aborted then. The ranks of the job are in this process.
#include "processes/job/job.h"

#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/tempfile.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "comm/scope.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "mesh/device_mesh.h"
#include "processes/job/bounded_store.h"
#include "processes/job/find_culprit.h"
#include "processes/job/host_process.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/time_limits.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const std::vector<int64_t> kBoth = {0, 1};

struct Jobs {
  c10::TempFile file = c10::make_tempfile("dtensor-job-");
  std::vector<std::unique_ptr<Job>> of_rank;
  std::shared_ptr<std::atomic<int>> aborts = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<bool>> done = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> broken = std::make_shared<std::atomic<bool>>(false);

  explicit Jobs(milliseconds timeout) {
    for (int64_t rank : kBoth) {
      of_rank.push_back(std::make_unique<Job>(c10::make_intrusive<c10d::FileStore>(file.name, 2), rank, 2, timeout));
      of_rank.back()->watch_group(
          kBoth, [broken = broken] { return *broken ? std::string("the connection is lost") : ""; },
          [aborts = aborts] { ++*aborts; });
    }
  }
  // Rank `rank` puts the n-th call of the group on its device, where it ends when `done` is set.
  void launch(int64_t rank, int64_t n) {
    const std::string what = "call " + std::to_string(n) + " of rank " + std::to_string(rank);
    of_rank[rank]->launch({"0,1", n, what}, kBoth, [&] { return [done = done] { return done->load(); }; });
  }
  static std::string failure_of(const Job& job) {
    try {
      job.check();
      return "";
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
  }
  // Of all ranks; empty if they do not all fail in time.
  std::string failure(milliseconds within) {
    const auto until = Clock::now() + within;
    while (Clock::now() < until && !(of_rank[0]->failed() && of_rank[1]->failed() && *aborts == 2)) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    const std::string text = failure_of(*of_rank[0]);
    return text == failure_of(*of_rank[1]) ? text : "";
  }
};

TEST_CASE("job: launched work does not hold up the host, and ends unnoticed", "[processes][job]") {
  Jobs jobs(milliseconds(20000));
  const auto begin = Clock::now();
  for (int64_t n = 1; n <= 100; ++n) {
    for (int64_t rank : kBoth) jobs.launch(rank, n);
  }
  CHECK(Clock::now() - begin < testing::kAtOnce);
  *jobs.done = true;
  std::this_thread::sleep_for(milliseconds(300));
  CHECK_FALSE(jobs.of_rank[0]->failed());
  jobs.of_rank.clear();
  CHECK(*jobs.aborts == 0);
}

TEST_CASE("job: a rank's failure aborts the groups of all, also of ranks that wait on a device", "[processes][job]") {
  Jobs jobs(milliseconds(20000));
  jobs.launch(0, 1);
  jobs.of_rank[1]->fail("it has had enough");
  CHECK(jobs.failure(testing::kAtOnce) == "rank 1 failed: it has had enough");
  CHECK(*jobs.aborts == 2);
  CHECK_THROWS_WITH(jobs.launch(0, 2), Contains("it has had enough"));
}

TEST_CASE("job: past the deadline the missing rank is named", "[processes][job]") {
  Jobs jobs(milliseconds(3000));
  jobs.launch(0, 1);
  jobs.launch(1, 1);
  jobs.launch(0, 2);
  const std::string text = jobs.failure(milliseconds(3000) + testing::kAtOnce);
  CHECK_THAT(text,
             Contains("rank 0 failed: call 1 of rank 0: not done within 3 s") ||
                 Contains("rank 1 failed: call 1 of rank 1: not done within 3 s"));  // both have come to the first
  CHECK(*jobs.aborts == 2);

  Jobs others(milliseconds(3000));
  others.launch(0, 1);
  CHECK_THAT(others.failure(milliseconds(3000) + testing::kAtOnce),
             Contains("rank 1 failed: it did not reach call 1 of rank 0, within 3 s"));
}

TEST_CASE("job: a rank that leaves after its part is not blamed, one that leaves before it is", "[processes][job]") {
  Jobs jobs(milliseconds(20000));
  jobs.launch(0, 1);
  jobs.launch(1, 1);
  auto leaving = std::move(jobs.of_rank[1]);
  *jobs.done = false;
  leaving.reset();
  std::this_thread::sleep_for(milliseconds(2500));
  CHECK_FALSE(jobs.of_rank[0]->failed());
  jobs.launch(0, 2);  // the first call is still there, so what is wrong with the second shows when that is done
  *jobs.done = true;
  std::this_thread::sleep_for(milliseconds(2000));
  *jobs.done = false;
  jobs.launch(0, 3);
  const auto until = Clock::now() + testing::kAtOnce;
  while (!jobs.of_rank[0]->failed() && Clock::now() < until) std::this_thread::sleep_for(milliseconds(5));
  CHECK_THAT(Jobs::failure_of(*jobs.of_rank[0]), Contains("rank 1 failed: it has left"));
}

TEST_CASE("job: a broken group, a device's error and a failed start fail the job", "[processes][job]") {
  {
    Jobs jobs(milliseconds(20000));
    jobs.launch(1, 1);
    *jobs.broken = true;
    jobs.failure(testing::kAtOnce);
    // Either rank may notice it first, or both at once: each then names itself.
    for (const auto& job : jobs.of_rank) CHECK_THAT(Jobs::failure_of(*job), Contains("the connection is lost"));
  }
  {
    Jobs jobs(milliseconds(20000));
    jobs.of_rank[0]->launch({"0,1", 1, "a call"}, kBoth,
                            [] { return []() -> bool { throw std::runtime_error("illegal memory access"); }; });
    CHECK_THAT(jobs.failure(testing::kAtOnce), Contains("rank 0 failed: a call: illegal memory access"));
  }
  Jobs jobs(milliseconds(20000));
  CHECK_THROWS_WITH(jobs.of_rank[0]->launch({"0,1", 1, "a call"}, kBoth,
                                            []() -> std::function<bool()> { throw std::runtime_error("no memory"); }),
                    Contains("rank 0 failed: a call: no memory"));
  CHECK(jobs.failure(testing::kAtOnce) == "rank 0 failed: a call: no memory");
}

TEST_CASE("job: the thread that watches a device is prepared before it checks a call", "[processes][job]") {
  auto file = c10::make_tempfile("dtensor-job-");
  auto prepared = std::make_shared<std::atomic<int>>(0);
  auto asked = std::make_shared<std::atomic<bool>>(false);
  const auto is_prepared = std::make_shared<std::atomic<bool>>(false);
  Job job(c10::make_intrusive<c10d::FileStore>(file.name, 1), 0, 1, milliseconds(20000));
  const auto watch = [&](const auto& prepare) {
    job.watch_group(
        {0}, [] { return std::string(); }, [] {}, prepare);
  };
  static thread_local bool is_watching = false;
  job.launch({"0", 1, "a call"}, std::vector<int64_t>{0}, [&] {
    return [=] {
      *is_prepared = is_watching;
      *asked = true;
      return true;
    };
  });
  watch([=] { is_watching = true, ++*prepared; });
  watch([=] { ++*prepared; });
  const auto begin = Clock::now();
  while (!*asked && Clock::now() - begin < testing::kAtOnce) std::this_thread::sleep_for(milliseconds(5));
  CHECK(*is_prepared);
  CHECK(*prepared == 1);

  Job fails(c10::make_intrusive<c10d::HashStore>(), 0, 1, milliseconds(20000));
  fails.watch_group(
      {0}, [] { return std::string(); }, [] {}, [] { throw std::runtime_error("no device"); });
  const auto since = Clock::now();
  while (Jobs::failure_of(fails).empty() && Clock::now() - since < testing::kAtOnce)
    std::this_thread::sleep_for(milliseconds(5));
  CHECK_THAT(Jobs::failure_of(fails), Contains("no device"));
}

TEST_CASE("job: an abort that does not end does not block the end of the job forever", "[processes][job]") {
  auto hold = std::make_shared<std::atomic<bool>>(true);
  auto file = c10::make_tempfile("dtensor-job-");
  auto job = std::make_unique<Job>(c10::make_intrusive<c10d::FileStore>(file.name, 1), 0, 1, milliseconds(20000));
  job->watch_group(
      {0}, [] { return std::string(); },
      [hold] {
        while (*hold) std::this_thread::sleep_for(milliseconds(5));
      });
  job->fail("over");
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = Clock::now();
  job.reset();
  CHECK(Clock::now() - begin < testing::kAtOnce);
  *hold = false;
  std::this_thread::sleep_for(milliseconds(100));
}

// A backend's thread lets go of its last work some time after that is done. If the work knew the scope, that thread
// might be the last to hold the world: it would end the world, and with it the backend, which waits for its threads; or
// the process ends first, and leaves the store behind.
TEST_CASE("job: a backend's threads do not hold the scope they were started in") {
  Job job(c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(5));
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const MeshScope scope(mesh);
  const auto outside = c10::ThreadLocalDebugInfo::current();
  bool started = false;
  const auto start = [&](bool fails) {
    return [&, fails]() -> c10::intrusive_ptr<c10d::Work> {
      started = true;
      CHECK_FALSE(current_dispatch_scope().mesh.defined());
      CHECK(c10::ThreadLocalDebugInfo::current() == nullptr);
      if (fails) throw std::runtime_error("no route");
      return {};
    };
  };
  job.run({"0", 1, "a call"}, {0}, start(false));
  CHECK(started);
  CHECK(current_dispatch_scope().mesh == mesh);
  CHECK(c10::ThreadLocalDebugInfo::current() == outside);
  CHECK_THROWS_WITH(job.run({"0", 2, "a call"}, {0}, start(true)), Contains("rank 0 failed: a call: no route"));
  CHECK(current_dispatch_scope().mesh == mesh);
}

// What a rank that says it is process `place` of this host is blamed for.
std::string fault_of(const nlohmann::json& place) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->set("place/1", std::string(place.dump()));
  JobBoard board(*make_bounded_store(store, milliseconds(5000)), 0);
  return find_fault(board, 1, {"0,1", 1, "a call"}, /*only_final=*/true);
}

TEST_CASE("job: a process is gone if its number is unused or another's, where numbers are comparable",
          "[processes][job]") {
  const int64_t own = ::getpid(), nobody = 1 << 30;
  const nlohmann::json here = {
      {"host", host_name()}, {"pid", own}, {"pid_namespace", pid_namespace()}, {"start", process_start(own)}};
  CHECK(pid_namespace() != "");
  CHECK(process_start(own) != "");
  CHECK(process_start(nobody) == "");
  CHECK(fault_of(here) == "");
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = here;
    other[key] = value;
    return other;
  };
  CHECK_THAT(fault_of(with("pid", nobody)), Contains("its process 1073741824 is gone"));
  CHECK_THAT(fault_of(with("start", "1")), Contains("is gone"));
  nlohmann::json elsewhere = with("pid", nobody);
  elsewhere["pid_namespace"] = "pid:[1]";
  CHECK(fault_of(elsewhere) == "");
  elsewhere["pid_namespace"] = pid_namespace();
  elsewhere["host"] = "another host";
  CHECK(fault_of(elsewhere) == "");
}

// Gloo writes to ranks that have just died.
TEST_CASE("job: a broken pipe is an error of the call, not the end of the process", "[processes][job]") {
  const Job job(c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(5));
  struct sigaction now = {};
  REQUIRE(::sigaction(SIGPIPE, nullptr, &now) == 0);
  CHECK(now.sa_handler == SIG_IGN);
}

}  // namespace
}  // namespace dtensor
