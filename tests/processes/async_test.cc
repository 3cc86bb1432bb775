// Exchanges that go on while the program does: redistribute(..., async_op). Runs in every rank's process.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "plan/cost_model.h"
#include "plan/redistribute_plan.h"
#include "tests/processes/job_world.h"
#include "tests/processes/rank_flag.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

DeviceMesh job_mesh() { return DeviceMesh(job_world(), {job_world().size()}, {"tp"}); }
at::Tensor values(double from) { return at::arange(from, from + 12 * 10, at::kFloat).view({12, 10}); }

TEST_CASE("async: a call returns before the other rank has made it, and reading waits") {
  const auto x = distribute_tensor(values(0), job_mesh(), {Shard(0)});
  RankFlag returned("returned");
  if (own_rank() != 0) REQUIRE(returned.wait(std::chrono::seconds(20)));
  const at::Tensor y = redistribute(x, {Shard(1)}, {.async_op = true});
  CHECK(y.sizes() == x.sizes());
  CHECK(DTensor(y).placements() == Placements{Shard(1)});  // does not wait either
  if (own_rank() == 0) returned.raise();
  CHECK(at::equal(full_tensor(y), values(0)));
}

// Of 12 x 10, and large enough for an all-reduce in two exchanges.
at::Tensor addends(int64_t rows) { return at::arange(rows * 10, at::kFloat).view({rows, 10}); }

// Rank 0's call returns before rank 1 makes it.
void check_returns_first(const std::string& flag, const at::Tensor& x, const Placements& to, const char* collective) {
  const at::Tensor whole = full_tensor(x);
  RankFlag returned(flag);
  if (own_rank() != 0) REQUIRE(returned.wait(std::chrono::seconds(20)));
  CommDebugMode comm;
  const at::Tensor y = redistribute(x, to, {.async_op = true});
  CHECK(comm.count(collective) == 1);
  CHECK(comm.total() == 1);
  if (own_rank() == 0) returned.raise();
  CHECK(DTensor(y).placements() == to);
  CHECK(at::equal(full_tensor(y), whole));
}

TEST_CASE("async: a small all-reduce returns before the other rank has made it") {
  const auto x = redistribute(distribute_tensor(addends(12), job_mesh(), {Replicate()}), {Partial()});
  check_returns_first("little", x, {Replicate()}, "all_reduce");
}

TEST_CASE("async: a large all-reduce returns before the other rank has made it") {
  const auto x = redistribute(distribute_tensor(addends(10000), job_mesh(), {Replicate()}), {Partial()});
  check_returns_first("much", x, {Replicate()}, "all_reduce");
}

TEST_CASE("async: a redistribution has read its input when the call returns") {
  const DeviceMesh mesh = job_mesh();
  const std::vector<std::pair<Placement, Placement>> changes = {{Partial(), Replicate()}, {Partial(), Shard(0)},
                                                                {Partial(), Shard(1)},    {Shard(0), Replicate()},
                                                                {Shard(0), Shard(1)},     {Shard(1), Shard(0)}};
  for (const auto& [from, to] : changes) {
    for (const int64_t rows : {12, 10000}) {
      CAPTURE(to_string(Placements{from}), to_string(Placements{to}), rows);
      RankFlag written(absl::StrCat("written ", to_string(Placements{from}), to_string(Placements{to}), rows));
      const at::Tensor own = addends(rows).add(own_rank()), stays = own.clone();
      const at::Tensor expected = to_local(redistribute(from_local({stays}, mesh, {from}), {to}))[0];
      const auto x = from_local({own}, mesh, {from});
      if (own_rank() != 0) REQUIRE(written.wait(std::chrono::seconds(20)));
      const at::Tensor y = redistribute(x, {to}, {.async_op = true});
      own.zero_();
      if (own_rank() == 0) written.raise();
      CHECK(at::equal(to_local(y)[0], expected));
    }
  }
}

TEST_CASE("async: local steps after the last exchange do not delay the call") {
  const DeviceMesh mesh = job_mesh();
  SECTION("fill") {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax}) {
      const auto x = distribute_tensor(addends(12), mesh, {Shard(0)});
      const std::string flag = "fill " + std::string(to_string(op));
      REQUIRE(plan_of(x, {Partial(op)}).steps.back().kind == RedistributeStep::Kind::kFill);
      check_returns_first(flag, x, {Partial(op)}, "all_gather");
    }
  }
  SECTION("slice") {
    // As on a network whose all-reduce is much better than its reduce-scatter.
    set_cost_model(mesh.world(), CostModel::from_json(R"({"within_node": {"reduce_scatter": {"latency": 1}}})"));
    for (int64_t rows : {int64_t{11}, int64_t{10001}}) {
      const auto x = redistribute(distribute_tensor(addends(rows), mesh, {Replicate()}), {Partial()});
      REQUIRE(plan_of(x, {Shard(0)}).steps.back().kind == RedistributeStep::Kind::kSlice);
      check_returns_first("slice " + std::to_string(rows), x, {Shard(0)}, "all_reduce");
    }
    set_cost_model(mesh.world(), CostModel());
  }
}

TEST_CASE("async: a large all-reduce completes if one rank never reads it") {
  const auto x = redistribute(distribute_tensor(addends(10000), job_mesh(), {Replicate()}), {Partial()});
  RankFlag read("read");
  const at::Tensor y = redistribute(x, {Replicate()}, {.async_op = true});
  if (own_rank() == 0) {
    CHECK(at::equal(to_local(y)[0], addends(10000)));
    read.raise();
  } else {
    CHECK(read.wait(std::chrono::seconds(20)));
  }
}

TEST_CASE("async: calls behind a large all-reduce return, too, and keep their order") {
  const DeviceMesh mesh = job_mesh();
  const auto replicated = distribute_tensor(addends(10000), mesh, {Replicate()});
  const auto partial = redistribute(replicated, {Partial()});
  const auto sharded = redistribute(replicated, {Shard(0)});
  RankFlag returned("all returned");
  if (own_rank() != 0) REQUIRE(returned.wait(std::chrono::seconds(20)));
  std::vector<at::Tensor> arriving;
  for (int i = 0; i < 3; ++i) {
    arriving.push_back(redistribute(partial, {Replicate()}, {.async_op = true}));
    arriving.push_back(redistribute(sharded, {Shard(1)}, {.async_op = true}));
  }
  if (own_rank() == 0) returned.raise();
  // One that waits, and so for all before it; and a rank that does not ask for more than the others do.
  CHECK(at::equal(full_tensor(redistribute(partial, {Replicate()}, {.async_op = own_rank() == 0})), addends(10000)));
  for (size_t i : {5, 0, 3, 2, 1, 4}) CHECK(at::equal(full_tensor(arriving[i]), addends(10000)));
}

TEST_CASE("async: several calls under way, read in another order, some never") {
  const DeviceMesh mesh = job_mesh();
  const std::vector<Placements> from = {{Shard(0)}, {Shard(1)}, {Partial()}, {Shard(0)}, {Shard(1)}};
  const std::vector<Placements> to = {{Shard(1)}, {Replicate()}, {Shard(0)}, {Replicate()}, {Shard(0)}};
  std::vector<at::Tensor> arriving;
  CommDebugMode comm;
  for (size_t i = 0; i < from.size(); ++i) {
    const auto x = distribute_tensor(values(100.0 * static_cast<double>(i)), mesh, {Replicate()});
    arriving.push_back(redistribute(redistribute(x, from[i]), to[i], {.async_op = true}));
  }
  CHECK(comm.count("all_to_all") == 2);
  CHECK(comm.count("all_gather") == 2);
  CHECK(comm.count("reduce_scatter") == 1);
  arriving[3] = at::Tensor();
  for (size_t i : {4, 0, 2, 1}) CHECK(at::equal(full_tensor(arriving[i]), values(100.0 * static_cast<double>(i))));
}

TEST_CASE("async: a whole gradient arrives through asynchronous calls") {
  const DeviceMesh mesh = job_mesh();
  auto x = distribute_tensor(values(0).requires_grad_(), mesh, {Shard(0)});
  const auto weight = distribute_tensor(values(7), mesh, {Shard(1)});
  at::mul(redistribute(x, {Shard(1)}, {.async_op = true}), weight).sum().backward();
  CHECK(DTensor(x.grad()).placements() == Placements{Shard(0)});
  CHECK(at::equal(full_tensor(x.grad()), values(7)));
}

TEST_CASE("async: a call begun in inference mode can be read outside") {
  const DeviceMesh mesh = job_mesh();
  at::Tensor y;
  {
    const c10::InferenceMode inference;
    const auto x = redistribute(distribute_tensor(values(3), mesh, {Replicate()}), {Partial()});
    y = redistribute(x, {Shard(0)}, {.async_op = true});
  }
  CHECK(at::equal(full_tensor(y), values(3)));
  {
    const c10::InferenceMode inference;
    y = redistribute(distribute_tensor(values(3), mesh, {Shard(0)}), {Partial()}, {.async_op = true});  // then a fill
  }
  CHECK(at::equal(full_tensor(y), values(3)));
  {
    const c10::InferenceMode inference;
    const auto x = redistribute(distribute_tensor(addends(10000), mesh, {Replicate()}), {Partial()});
    y = redistribute(x, {Replicate()}, {.async_op = true});
  }
  CHECK(at::equal(full_tensor(y), addends(10000)));
}

TEST_CASE("async: redistribution to another mesh returns before the other rank has made the call") {
  const DeviceMesh mesh = job_mesh();
  const DeviceMesh reversed(mesh.world(), {2}, {"pt"}, std::vector<int64_t>{1, 0});
  const DeviceMesh single(mesh.world(), {1}, {"one"}, std::vector<int64_t>{1});
  const auto x = distribute_tensor(values(5), mesh, {Shard(0)});
  redistribute(x, reversed,
               {Shard(1)});  // the first call between two meshes makes a link, for which ranks have to meet
  RankFlag returned("mesh");
  if (own_rank() != 0) REQUIRE(returned.wait(std::chrono::seconds(20)));
  const at::Tensor y = redistribute(x, reversed, {Shard(1)}, {.async_op = true});
  if (own_rank() == 0) returned.raise();
  const at::Tensor z = redistribute(x, single, {Replicate()}, {.async_op = true});
  CHECK(at::equal(full_tensor(y), values(5)));
  if (own_rank() == 0) {
    CHECK(to_local(z).empty());
  } else {
    CHECK(at::equal(full_tensor(z), values(5)));
  }
  CHECK(at::equal(full_tensor(redistribute(z, mesh, {Replicate()})), values(5)));
}

}  // namespace
}  // namespace dtensor
