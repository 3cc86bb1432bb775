// Jobs of several processes with a GPU each. Runs in every rank's process.
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "comm/communicator.h"
#include "processes/launch/launch_env.h"
#include "tests/cuda/collectives.h"
#include "tests/processes/job_world.h"

using Catch::Contains;

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;

// Of the world, which cannot be made with fewer GPUs.
int64_t world_size() { return find_job_place({}).world_size; }

TEST_CASE("nccl job: every collective") {
  if (fewer_gpus_than(world_size())) return;
  check_collectives(job_world(), {job_world().size()});
}

TEST_CASE("nccl job: subgroups, and counts that grow past every comparison") {
  if (fewer_gpus_than(world_size())) return;
  const DeviceMesh mesh(job_world(), {1, job_world().size()});
  const int64_t rank = mesh.local_ranks()[0];
  for (int i = 0; i < 300; ++i) {
    for (int64_t dim : {0, 1}) {
      const auto one = at::full({64}, 1, at::TensorOptions().device(job_world().device(rank)));
      const auto sum = job_world().communicator().all_reduce(call_on(mesh, {dim}), {one}, ReduceOp::kSum)[0];
      if (i % 100 == 0) CHECK(at::equal(sum.cpu(), at::full({64}, dim == 0 ? 1 : job_world().size())));
    }
  }
}

TEST_CASE("nccl job: a rank that fails ends what the others have on their devices") {
  if (fewer_gpus_than(world_size())) return;
  std::string error;
  const auto begin = Clock::now();
  try {
    const World world = World::from_env();
    const DeviceMesh mesh(world, {world.size()});
    const int64_t rank = mesh.local_ranks()[0];
    const auto one = at::full({1 << 20}, 1, at::TensorOptions().device(world.device(rank)));
    const auto reduce = [&] { return world.communicator().all_reduce(call_on(mesh, {0}), {one}, ReduceOp::kSum)[0]; };
    CHECK(reduce().cpu()[0].item<int64_t>() == world.size());
    if (rank == 1) throw std::runtime_error("rank 1 has had enough");
    const auto never = reduce();
    never.cpu();  // comes back, with anything
    for (const auto until = Clock::now() + std::chrono::seconds(10); Clock::now() < until;) reduce().cpu();
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = e.what();
  }
  CHECK(Clock::now() - begin < std::chrono::seconds(15));
  CHECK_THAT(error, Contains("rank 1 failed: ") || Contains("rank 1 has had enough"));
}

}  // namespace
}  // namespace dtensor
