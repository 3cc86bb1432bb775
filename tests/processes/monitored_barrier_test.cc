// Ranks that come to a monitored barrier, late or not at all: every rank gets the same error, and the job goes on.
#include "processes/monitored_barrier.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "processes/job/bounded_store.h"
#include "processes/job/world_job.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// "" if it passes.
std::string error_of_barrier(const DeviceMesh& mesh, milliseconds timeout) {
  try {
    monitored_barrier(mesh, timeout);
  } catch (const c10::DistError& e) {
    return e.what_without_backtrace();
  }
  return "";
}

// How ranks wait for one another without a barrier.
c10d::Store& signals() { return *job_world().attachment<WorldJob>().job.lock()->store(); }
std::string key_of(const std::string& name, int64_t rank) { return "signal " + name + "/" + std::to_string(rank); }
void signal(const std::string& name) { signals().set(key_of(name, own_rank()), "1"); }
void wait_for_signals(const std::string& name, const std::vector<int64_t>& ranks) {
  for (const int64_t rank : ranks) signals().wait({key_of(name, rank)});
}

// Whether the ranks of the mesh can still communicate, with the right result.
bool communicates(const DeviceMesh& mesh) {
  const auto x = from_local({at::full({4}, static_cast<double>(own_rank() + 1))}, mesh, {Partial()});
  return to_local(redistribute(x, {Replicate()}))[0][0].item<double>() == 10;
}

TEST_CASE("monitored barrier: no rank passes it before all have arrived", "[processes][barrier]") {
  const DeviceMesh mesh(job_world(), {4}, {"tp"});
  monitored_barrier(mesh);
  const auto begin = Clock::now();
  if (own_rank() == 2) std::this_thread::sleep_for(milliseconds(500));
  monitored_barrier(mesh, milliseconds(15000));
  CHECK(Clock::now() - begin >= milliseconds(400));
}

TEST_CASE("monitored barrier: all missing ranks are named on all ranks, and the job continues",
          "[processes][barrier]") {
  const DeviceMesh mesh(job_world(), {2, 2}, {"dp", "tp"});
  const bool late = own_rank() == 1 || own_rank() == 3;
  if (late) wait_for_signals("all", {0, 2});
  const std::string error = error_of_barrier(mesh, milliseconds(3000));
  if (!late) signal("all");
  CHECK_THAT(error, Contains("of ranks 0-3: ranks 1,3 have not come within 3 s"));
  // The next one passes, and collectives do what they did.
  CHECK(error_of_barrier(mesh, milliseconds(15000)).empty());
  CHECK(communicates(DeviceMesh(job_world(), {4}, {"tp"})));
}

TEST_CASE("monitored barrier: one rank that is missing, again and again", "[processes][barrier]") {
  const DeviceMesh mesh(job_world(), {4}, {"tp"});
  for (int64_t missing : {0, 3}) {
    monitored_barrier(mesh);
    const std::string name = "again " + std::to_string(missing);
    std::vector<int64_t> others = {0, 1, 2, 3};
    others.erase(others.begin() + missing);
    if (own_rank() == missing) wait_for_signals(name, others);
    const std::string error = error_of_barrier(mesh, milliseconds(3000));
    if (own_rank() != missing) signal(name);
    CHECK_THAT(error, Contains("ranks 0-3: rank " + std::to_string(missing) + " has not come within 3 s"));
  }
  CHECK(error_of_barrier(mesh, milliseconds(15000)).empty());
}

TEST_CASE("monitored barrier: of some ranks", "[processes][barrier]") {
  const DeviceMesh some(job_world(), {2}, {"tp"}, {2, 0});
  monitored_barrier(DeviceMesh(job_world(), {4}, {"tp"}));
  if (own_rank() == 0) wait_for_signals("some", {2});
  const std::string error = error_of_barrier(some, milliseconds(3000));
  if (own_rank() == 2) signal("some");
  if (own_rank() % 2 == 1) {
    CHECK(error.empty());  // it is none of this one's
  } else {
    CHECK_THAT(error, Contains("monitored_barrier 1 of ranks 0,2: rank 0 has not come within 3 s"));
  }
  monitored_barrier(DeviceMesh(job_world(), {4}, {"tp"}));
}

TEST_CASE("monitored barrier: rejected arguments, and cases in which it does nothing", "[processes][barrier]") {
  const DeviceMesh mesh(job_world(), {4}, {"tp"});
  CHECK_THROWS_WITH(monitored_barrier(mesh, milliseconds(-1)), Contains("`timeout` is -1 ms; it must be 0"));
  CHECK_THROWS_WITH(monitored_barrier(mesh, milliseconds(20001)), Contains("or up to that, 20000 ms"));
  CHECK_THROWS_WITH(monitored_barrier(DeviceMesh()), Contains("`mesh` is not defined"));
  monitored_barrier(DeviceMesh(World::local(4), {4}), milliseconds(-1));
  monitored_barrier(DeviceMesh(World::abstract(4), {4}));
  monitored_barrier(mesh);
}

}  // namespace
}  // namespace dtensor
