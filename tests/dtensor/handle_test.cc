// The DTensor handle: its accessors and its printed text.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <sstream>

#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/scopes.h"
#include "plan/redistribute_plan.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

std::string printed(const at::Tensor& t) {
  std::ostringstream os;
  os << DTensor(t);
  return os.str();
}

at::Tensor counting(std::vector<int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return at::arange(n, at::kFloat).view(sizes);
}

}  // namespace

TEST_CASE("handle: returns layout, parts and their shapes") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const DTensor t(distribute_tensor(counting({5, 3}), mesh, {Replicate(), Shard(0)}));
  CHECK(t.mesh() == mesh);
  CHECK(t.placements() == Placements{Replicate(), Shard(0)});
  CHECK(t.name().empty());
  CHECK(t.local_shape(1) == std::vector<int64_t>{2, 3});
  CHECK(t.shape_on_rank(2) == std::vector<int64_t>{3, 3});
  CHECK(t.locals().size() == 4);
  CHECK(at::equal(t.local(1), counting({5, 3}).slice(0, 3)));
  CHECK(at::equal(t.full_tensor(), counting({5, 3})));
  CHECK(t.to_local().size() == 4);
  const auto moved = t.redistribute({Shard(1), Replicate()});
  CHECK(moved.placements() == Placements{Shard(1), Replicate()});
  CHECK(at::equal(moved.full_tensor(), counting({5, 3})));
  CHECK(t.plan_to({Replicate(), Replicate()}).num_collectives() == 1);
  CHECK_FALSE(t.grad().has_value());
  const at::Tensor& as_tensor = t;
  CHECK(as_tensor.is_same(t.tensor()));
}

TEST_CASE("handle: the gradient is a handle too") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  const at::Tensor w = distribute_tensor(at::ones({4}), mesh, {Shard(0)}).requires_grad_();
  w.mutable_grad() = distribute_tensor(counting({4}), mesh, {Shard(0)});
  REQUIRE(DTensor(w).grad().has_value());
  CHECK(DTensor(w).grad()->placements() == Placements{Shard(0)});
}

TEST_CASE("handle: errors name a remedy") {
  CHECK_THROWS_WITH(DTensor(at::ones({2, 3})), Catch::Contains("[2, 3]") && Catch::Contains("distribute_tensor"));
  CHECK_THROWS_AS(DTensor(at::ones({2, 3})), c10::TypeError);
  CHECK_THROWS_AS(DTensor(at::Tensor()), c10::TypeError);
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  const DTensor t(zeros({4}, mesh, {Shard(0)}));
  CHECK_THROWS_WITH(t.local(2), Catch::Contains("local(2)") && Catch::Contains("2 local parts"));
  CHECK_THROWS_AS(t.local(-1), c10::IndexError);
  CHECK_THROWS_AS(t.local_shape(7), c10::IndexError);
  const DTensor nothing(zeros({4}, DeviceMesh(World::abstract(8), {8}), {Shard(0)}));
  CHECK(nothing.locals().empty());
  CHECK_THROWS_WITH(nothing.local(), Catch::Contains("0 local parts"));
}

TEST_CASE("handle: prints a matrix sharded on both dims") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  CHECK(printed(distribute_tensor(counting({3, 4}), mesh, {Shard(0), Shard(1)})) ==
        R"(f32[3, 4](S(0) S(1)) @ mesh(dp=2, tp=2)
        0:2   2:4
      ┌─────┬─────┐
  0:2 │ 0   │ 1   │
      ├─────┼─────┤
  2:3 │ 2   │ 3   │
      └─────┴─────┘
  rank 0: [[0, 1], [4, 5]]
  rank 1: [[2, 3], [6, 7]]
  rank 2: [[8, 9]]
  rank 3: [[10, 11]]
)");
}

TEST_CASE("handle: prints uneven and empty parts, replicas and addends") {
  const World world = World::local(4);
  const DeviceMesh line(world, {4}, {"x"}), grid(world, {2, 2}, {"dp", "tp"});
  CHECK(printed(distribute_tensor(counting({5}), line, {Shard(0)})) == R"(f32[5](S(0)) @ mesh(x=4)
     0:2   2:4   4:5
   ┌─────┬─────┬─────┐
   │ 0   │ 1   │ 2   │
   └─────┴─────┴─────┘
  nothing on rank 3
  rank 0: [0, 1]
  rank 1: [2, 3]
  rank 2: [4]
  rank 3: []
)");
  const auto replicas = printed(distribute_tensor(counting({2, 64}), grid, {Replicate(), Shard(0)}));
  CHECK_THAT(replicas, Catch::Contains("0:1 │ 0,2"));
  CHECK_THAT(replicas, !Catch::Contains("rank 0:"));  // too many values
  CHECK_THAT(printed(zeros({2, 2}, grid, {Replicate(), Partial()})),
             Catch::Contains("(R P(sum))") && Catch::Contains("│ 0+1, 2+3 │"));
  CHECK_THAT(printed(zeros({2, 2}, line, {Replicate()})), Catch::Contains("│ 0-3 │"));
  CHECK_THAT(printed(zeros({2, 2}, line, {Partial()})), Catch::Contains("│ 0+...+3 │"));
}

TEST_CASE("handle: prints tensors of any number of dims, dtype and size") {
  const World world = World::local(4);
  const DeviceMesh line(world, {4}, {"x"}), grid(world, {2, 2}, {"dp", "tp"});
  CHECK_THAT(printed(zeros({}, line)), Catch::StartsWith("f32[](R) @ mesh(x=4)\n") && Catch::Contains("│ 0-3 │"));
  CHECK(printed(zeros({0, 3}, line, {Shard(0)})) ==
        "f32[0, 3](S(0)) @ mesh(x=4)\n  rank 0: []\n  rank 1: []\n  rank 2: []\n  rank 3: []\n");
  CHECK_THAT(printed(zeros({8, 16, 32}, grid, {Shard(2), Replicate()})),
             Catch::Contains("dims 1 (down) and 2 (across)") && Catch::Contains("│ 0,1") && Catch::Contains("│ 2,3"));
  CHECK_THAT(printed(full({4}, true, line, {Shard(0)})),
             Catch::StartsWith("b8[4]") && Catch::Contains("rank 3: [true]"));
  CHECK_THAT(printed(full({4}, 9007199254740993, line, {Shard(0)})), Catch::Contains("[9007199254740993]"));
  CHECK_THAT(printed(full({2}, 0.1234567, line, {Replicate()})), Catch::Contains("[0.1235, 0.1235]"));
  CHECK(printed(zeros({1 << 20, 4}, DeviceMesh(World::abstract(4096), {4096}, {"x"}), {Shard(0)})) ==
        "f32[1048576, 4](S(0)) @ mesh(x=4096)\n");
  const auto wide = printed(zeros({64}, DeviceMesh(World::abstract(64), {64}, {"x"}), {Shard(0)}));
  CHECK_THAT(wide, Catch::Contains("6:7   ...   63:64") && !Catch::Contains("7:8"));
  // A part of several runs: rank 0 holds the first half of each block.
  CHECK_THAT(printed(distribute_tensor(counting({8}), DeviceMesh(world, {2}, {"x"}), {StridedShard(0, 2)})),
             Catch::Contains("│ 0   │ 1   │ 0   │ 1   │") && Catch::Contains("rank 0: [0, 1, 4, 5]"));
}

TEST_CASE("handle: printing does not communicate and ignores a MeshScope") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  struct Refuse : CommListener {
    void on_comm(const CommEvent&, bool) override { throw std::runtime_error("communication"); }
  } refuse;
  const auto t = zeros({3}, mesh, {Partial()});
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&refuse); });
  MeshScope inside(mesh);
  CHECK_NOTHROW(printed(t));
}

}  // namespace dtensor
