// Distributed tensors made without a whole tensor.
#include "dtensor/factories.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/scopes.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

const DeviceMesh& grid() {
  static const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  return mesh;
}

std::vector<Placements> layouts() {
  return {{},
          {Replicate(), Shard(0)},
          {Shard(1), Shard(0)},
          {Shard(0), Shard(0)},
          {Replicate(), Partial()},
          {Partial(), Shard(1)},
          {Partial(ReduceOp::kAvg), Partial()},
          {Partial(ReduceOp::kMax), Replicate()},
          {Partial(ReduceOp::kProduct), Shard(0)}};
}

}  // namespace

TEST_CASE("factories: constants have their value in every layout") {
  for (const Placements& p : layouts()) {
    INFO(to_string(p));
    CHECK(at::equal(full_tensor(zeros({5, 3}, grid(), p)), at::zeros({5, 3})));
    CHECK(at::equal(full_tensor(ones({5, 3}, grid(), p)), at::full({5, 3}, 1.0)));
    CHECK(at::equal(full_tensor(full({5, 3}, 2.5, grid(), p)), at::full({5, 3}, 2.5)));
    const DTensor t(full({5, 3}, 2.5, grid(), p));
    CHECK(t.placements() == (p.empty() ? Placements{Replicate(), Replicate()} : p));
    for (int64_t i = 0; i < 4; ++i) CHECK(t.local(i).sizes() == c10::IntArrayRef(t.local_shape(i)));
  }
}

TEST_CASE("factories: dtype, requires_grad and shape") {
  CHECK(zeros({2}, grid()).scalar_type() == at::kFloat);
  CHECK(full({2}, 3, grid()).scalar_type() == at::kLong);
  CHECK(full({2}, true, grid()).scalar_type() == at::kBool);
  CHECK(full({2}, 3, grid(), {}, {.dtype = at::kHalf}).scalar_type() == at::kHalf);
  CHECK_FALSE(randn({2}, grid()).requires_grad());
  const auto w = randn({4, 2}, grid(), {Shard(0), Replicate()}, {.dtype = at::kDouble, .requires_grad = true});
  CHECK(w.requires_grad());
  CHECK(w.is_leaf());
  CHECK(w.scalar_type() == at::kDouble);
  CHECK(empty({3, 0}, grid(), {Shard(1), Shard(0)}).sizes() == c10::IntArrayRef{3, 0});
  CHECK(zeros({}, grid()).dim() == 0);
}

TEST_CASE("factories: no rank allocates more than its part, and nothing is communicated") {
  const World world = World::abstract(64);
  const DeviceMesh mesh(world, {64}, {"x"});
  world.memory().reset_peak();
  const auto t = randn({1 << 12, 1 << 10}, mesh, {Shard(0)});
  CHECK(world.memory().peak_bytes() == (1 << 22) * 4 / 64);

  struct Refuse : CommListener {
    void on_comm(const CommEvent&, bool) override { throw std::runtime_error("communication"); }
  } refuse;
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&refuse); });
  for (const Placements& p : layouts()) {
    CHECK_NOTHROW(full({5, 3}, 1, grid(), p));
    CHECK_NOTHROW(rand({5, 3}, grid(), p));
  }
}

TEST_CASE("factories: random values depend on neither mesh nor placements") {
  const World world = World::local(6);
  const DeviceMesh six(world, {2, 3}, {"a", "b"}), line(world, {6}, {"x"});
  for (const bool normal : {false, true}) {
    const auto draw = [&](const DeviceMesh& mesh, const Placements& p) {
      at::manual_seed(7);
      return full_tensor(normal ? randn({7, 5}, mesh, p) : rand({7, 5}, mesh, p));
    };
    const auto expected = draw(line, {Shard(0)});
    CHECK(at::equal(draw(line, {Replicate()}), expected));
    CHECK(at::equal(draw(line, {Partial()}), expected));
    CHECK(at::equal(draw(six, {Shard(1), Shard(0)}), expected));
    CHECK(at::equal(draw(six, {Shard(0), Shard(0)}), expected));
    CHECK(at::equal(draw(six, {Replicate(), StridedShard(0, 2)}), expected));
    CHECK(expected.std().item<double>() > 0.1);
  }
}

TEST_CASE("factories: errors name the function and the value") {
  CHECK_THROWS_WITH(zeros({2}, DeviceMesh()), Catch::Contains("[zeros] no mesh"));
  CHECK_THROWS_WITH(ones({2, -1}, grid()), Catch::Contains("[ones]") && Catch::Contains("[2, -1]"));
  CHECK_THROWS_WITH(rand({2}, grid(), {Shard(0)}), Catch::Contains("1 entries") && Catch::Contains("2 dims"));
  CHECK_THROWS_WITH(full({2}, 1, grid(), {Shard(1), Replicate()}), Catch::Contains("[full]"));
  CHECK_THROWS_AS(empty({2}, grid(), {Partial(ReduceOp::kMax), Partial()}), c10::ValueError);
}

TEST_CASE("factories: a MeshScope on another mesh has no effect") {
  const DeviceMesh other(World::local(2), {2});
  MeshScope inside(other);
  CHECK(DTensor(ones({4}, grid(), {Shard(0), Replicate()})).mesh() == grid());
}

}  // namespace dtensor
