// Exchanges that go on while the program does: redistribute(..., async_op). Runs in every rank's process.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "dtensor/comm_debug_mode.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

namespace fs = std::filesystem;

// What one process says to the other past the runtime.
class Flag {
 public:
  explicit Flag(const std::string& name) : path_(fs::path(std::getenv("TEST_TMPDIR")) / name) {}
  void raise() { std::ofstream(path_) << "1"; }
  bool wait(std::chrono::seconds most) const {
    for (const auto end = std::chrono::steady_clock::now() + most; std::chrono::steady_clock::now() < end;) {
      if (fs::exists(path_)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

 private:
  fs::path path_;
};

DeviceMesh job_mesh() { return DeviceMesh(job_world(), {job_world().size()}, {"tp"}); }
bool is_rank(int64_t rank) { return job_world().owned_ranks().front() == rank; }
at::Tensor values(double from) { return at::arange(from, from + 12 * 10, at::kFloat).view({12, 10}); }

TEST_CASE("a call returns before the other rank has made it, and reading waits") {
  const auto x = distribute_tensor(values(0), job_mesh(), {Shard(0)});
  Flag returned("returned");
  if (!is_rank(0)) REQUIRE(returned.wait(std::chrono::seconds(20)));
  const at::Tensor y = redistribute(x, {Shard(1)}, /*async_op=*/true);
  CHECK(y.sizes() == x.sizes());
  CHECK(DTensor(y).placements() == Placements{Shard(1)});  // does not wait either
  if (is_rank(0)) returned.raise();
  CHECK(at::equal(full_tensor(y), values(0)));
}

TEST_CASE("several under way, read in another order, some never") {
  const DeviceMesh mesh = job_mesh();
  const std::vector<Placements> from = {{Shard(0)}, {Shard(1)}, {Partial()}, {Shard(0)}, {Shard(1)}};
  const std::vector<Placements> to = {{Shard(1)}, {Replicate()}, {Shard(0)}, {Replicate()}, {Shard(0)}};
  std::vector<at::Tensor> arriving;
  CommDebugMode comm;
  for (size_t i = 0; i < from.size(); ++i) {
    const auto x = distribute_tensor(values(100.0 * static_cast<double>(i)), mesh, {Replicate()});
    arriving.push_back(redistribute(redistribute(x, from[i]), to[i], /*async_op=*/true));
  }
  CHECK(comm.count("all_to_all") == 2);
  CHECK(comm.count("all_gather") == 2);
  CHECK(comm.count("reduce_scatter") == 1);
  arriving[3] = at::Tensor();
  for (size_t i : {4, 0, 2, 1}) CHECK(at::equal(full_tensor(arriving[i]), values(100.0 * static_cast<double>(i))));
}

TEST_CASE("a whole gradient comes through what was under way") {
  const DeviceMesh mesh = job_mesh();
  auto x = distribute_tensor(values(0).requires_grad_(), mesh, {Shard(0)});
  const auto weight = distribute_tensor(values(7), mesh, {Shard(1)});
  at::mul(redistribute(x, {Shard(1)}, /*async_op=*/true), weight).sum().backward();
  CHECK(DTensor(x.grad()).placements() == Placements{Shard(0)});
  CHECK(at::equal(full_tensor(x.grad()), values(7)));
}

TEST_CASE("what was begun in inference mode is read outside") {
  const DeviceMesh mesh = job_mesh();
  at::Tensor y;
  {
    const c10::InferenceMode inference;
    const auto x = redistribute(distribute_tensor(values(3), mesh, {Replicate()}), {Partial()});
    y = redistribute(x, {Shard(0)}, /*async_op=*/true);
  }
  CHECK(at::equal(full_tensor(y), values(3)));
}

// Last, as the job has ended then.
TEST_CASE("reading says why nothing comes any more, every time") {
  const auto x = distribute_tensor(values(0), job_mesh(), {Shard(0)});
  if (!is_rank(0)) return;  // leaves
  const at::Tensor y = redistribute(x, {Shard(1)}, /*async_op=*/true);
  for (int i = 0; i < 2; ++i) {
    std::string error;
    try {
      to_local(y);
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
    }
    INFO(error);
    CHECK(error.find("rank 1") != std::string::npos);
    CHECK(error.find("all_to_all over tp for redistribute") != std::string::npos);
  }
}

}  // namespace
}  // namespace dtensor
