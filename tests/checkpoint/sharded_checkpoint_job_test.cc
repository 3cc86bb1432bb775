// Checkpoints of a job of several processes: one outcome for all of them, whichever has the fault.
#include <ATen/ATen.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/sharded/manifest.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;

int64_t rank() { return job_world().owned_ranks().front(); }
int64_t last() { return job_world().size() - 1; }

// The same path in all processes.
std::string folder(const std::string& name) {
  const char* base = std::getenv("TEST_TMPDIR");
  return std::string(base != nullptr ? base : "/tmp") + "/sharded_checkpoint_job_" + name;
}

DeviceMesh mesh() { return DeviceMesh(job_world(), {job_world().size()}); }

CheckpointContents contents_of(NamedTensors tensors) {
  CheckpointContents contents;
  contents.tensors = std::move(tensors);
  contents.random_state = false;
  return contents;
}

at::Tensor numbered(double first) { return at::arange(77, at::kDouble).view({11, 7}) + first; }

NamedTensors laid_out(double first) {
  return {{"rows", distribute_tensor(numbered(first), mesh(), {Shard(0)})},
          {"columns", distribute_tensor(numbered(first), mesh(), {Shard(1)})},
          {"all", distribute_tensor(numbered(first), mesh(), {Replicate()})},
          {"plain", numbered(first)}};
}

// Loaded by all processes, elsewhere than they were saved from.
void check_holds(const std::string& path, double first) {
  auto contents = contents_of({{"rows", distribute_tensor(numbered(0), mesh(), {Shard(1)})},
                               {"columns", distribute_tensor(numbered(0), mesh(), {Replicate()})},
                               {"all", distribute_tensor(numbered(0), mesh(), {Shard(0)})},
                               {"plain", at::Tensor()}});
  load_checkpoint(path, contents);
  for (const char* name : {"rows", "columns", "all"})
    CHECK(at::equal(full_tensor(contents.tensors[name]), numbered(first)));
  CHECK(at::equal(contents.tensors["plain"], numbered(first)));
}

}  // namespace

TEST_CASE("a job saves, and loads on other layouts; one of its processes alone without any") {
  const std::string path = folder("usual");
  CommDebugMode comm;
  save_checkpoint(path, contents_of(laid_out(1)));
  CHECK(comm.total() > 0);
  CHECK(comm.bytes() < 100000);  // names and sums, no values
  check_holds(path, 1);
  const Manifest manifest = read_manifest(path);
  CHECK(static_cast<int64_t>(manifest.files.size()) == job_world().size());
  if (rank() == last()) {
    auto alone =
        contents_of({{"rows", at::Tensor()}, {"columns", numbered(0)}, {"all", numbered(0)}, {"plain", numbered(0)}});
    CHECK_THROWS_WITH(load_checkpoint(path, alone), Contains("this process is one of a job"));
    LoadCheckpointOptions without_the_others;
    without_the_others.world = World::local(1);
    load_checkpoint(path, alone, without_the_others);
    for (const auto& [name, t] : alone.tensors) CHECK(at::equal(t, numbered(1)));
  }
  save_checkpoint(path, contents_of(laid_out(2)));
  check_holds(path, 2);
}

TEST_CASE("a process that cannot write is an error on all, with its rank") {
  const std::string path = folder("full");
  save_checkpoint(path, contents_of(laid_out(1)));
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  if (rank() == last()) {
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit little = {100, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &little);
  }
  const std::string name = "rank " + std::to_string(last()) + ":";
  CHECK_THROWS_WITH(save_checkpoint(path, contents_of(laid_out(2))), Contains(name) && Contains("cannot be written"));
  setrlimit(RLIMIT_FSIZE, &before);
  check_holds(path, 1);
  save_checkpoint(path, contents_of(laid_out(3)));
  check_holds(path, 3);
}

TEST_CASE("processes that save different contents get an error") {
  const std::string path = folder("different");
  auto contents = contents_of(laid_out(1));
  contents.values["step"] = rank() == last() ? int64_t{8} : int64_t{7};
  CHECK_THROWS_WITH(save_checkpoint(path, contents), Contains("rank " + std::to_string(last()) + " saves other"));
  contents.values["step"] = int64_t{7};
  if (rank() == last()) contents.tensors["plain"] = at::Tensor();
  CHECK_THROWS_WITH(save_checkpoint(path, contents),
                    Contains("rank " + std::to_string(last()) + ":") && Contains("'plain' is undefined"));
}

TEST_CASE("processes that see different checkpoints, or none, get an error") {
  const std::string one = folder("one"), other = folder("other");
  save_checkpoint(one, contents_of(laid_out(1)));
  save_checkpoint(other, contents_of(laid_out(2)));
  auto contents = contents_of(laid_out(5));
  CHECK_THROWS_WITH(load_checkpoint(rank() == last() ? other : one, contents),
                    Contains("is one checkpoint for rank 0"));
  CHECK_THROWS_WITH(load_checkpoint(rank() == last() ? folder("nothing") : one, contents),
                    Contains("rank " + std::to_string(last())) && Contains("there is no checkpoint in"));
  CHECK(at::equal(full_tensor(contents.tensors["rows"]), numbered(5)));
}

TEST_CASE("an asynchronous save of a job") {
  const std::string path = folder("async");
  const NamedTensors tensors = laid_out(1);
  PendingCheckpoint pending = save_checkpoint_async(path, contents_of(tensors));
  for (const auto& [name, t] : tensors) t.add_(1);  // training goes on, with collectives
  CHECK(full_tensor(tensors.at("rows"))[0][0].item<double>() == 2);
  pending.wait();
  check_holds(path, 1);
}

TEST_CASE("a job that polls: all processes get the same answer in the same step, even if one writes slowly") {
  const std::string path = folder("polled");
  SaveCheckpointOptions options;
  std::atomic<bool> may_go_on = rank() != last();
  options.progress = [&](const CheckpointProgress&) {
    while (!may_go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  PendingCheckpoint pending = save_checkpoint_async(path, contents_of(laid_out(3)), options);
  for (int step = 0; step < 5; ++step) CHECK_FALSE(pending.try_commit());
  may_go_on = true;
  int64_t steps = 0;
  while (!pending.try_commit()) ++steps;
  CHECK(pending.try_commit());
  check_holds(path, 3);
  const auto counts = at::full({1}, static_cast<double>(steps));
  CHECK(at::equal(full_tensor(from_local({counts}, mesh(), {Shard(0)})), counts.expand({job_world().size()})));
}

TEST_CASE("a job that polls: a process that cannot write is an error on all") {
  const std::string path = folder("polled_fails");
  SaveCheckpointOptions options;
  if (rank() == last()) options.progress = [](const CheckpointProgress&) { throw std::runtime_error("no more disk"); };
  PendingCheckpoint pending = save_checkpoint_async(path, contents_of(laid_out(3)), options);
  const auto poll = [&] {
    while (!pending.try_commit()) continue;
  };
  CHECK_THROWS_WITH(poll(), Contains("rank " + std::to_string(last()) + ": no more disk"));
  CHECK_THROWS_WITH(pending.try_commit(), Contains("has ended before"));
}

}  // namespace dtensor
