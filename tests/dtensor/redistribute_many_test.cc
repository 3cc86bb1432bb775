// Many tensors in one batch of collectives, and tensors that move to another mesh.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/layout_oracle.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Catch::Contains;

at::Tensor distributed(const at::Tensor& t, const DeviceMesh& mesh, const Placements& placements,
                       bool requires_grad = false) {
  return distribute_tensor(t.clone().set_requires_grad(requires_grad), mesh, placements);
}

TEST_CASE("redistribute_many: equals redistribute one by one, in one collective", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor a = numbers({6, 5}), b = numbers({3, 8}, at::kLong), c = numbers({4});
  const std::vector<at::Tensor> x = {distributed(a, mesh, {Shard(0)}), distributed(b, mesh, {Shard(1)}),
                                     distributed(c, mesh, {Replicate()})};
  CommDebugMode comm;
  const auto y = redistribute_many(x, {{Replicate()}});
  CHECK(comm.total() == 1);
  CHECK(comm.count(Collective::kAllGather) == 1);
  const CommEvent event = comm.events().at(0);
  CHECK(event.cause.op == "redistribute_many");
  CHECK_FALSE(event.cause.implicit);
  CHECK(to_string(*event.layout_change, event.more_tensors) == "f64[6, 5](S(0)) -> (R) @ mesh(tp=4) and 1 more");
  REQUIRE(y.size() == 3);
  CHECK(at::equal(full_tensor(y[0]), a));
  CHECK(at::equal(full_tensor(y[1]), b));
  CHECK(y[2].is_same(x[2]));
  for (const auto& t : y) CHECK(DTensor(t).placements() == Placements{Replicate()});

  comm.reset();
  const auto z = redistribute_many(x, {{Shard(1)}, {Replicate()}, {Shard(0)}});
  CHECK(comm.total() == 1);
  CHECK(at::equal(full_tensor(z[0]), a));
  CHECK(at::equal(full_tensor(z[1]), b));
  CHECK(at::equal(full_tensor(z[2]), c));
  CHECK(DTensor(z[0]).placements() == Placements{Shard(1)});
  CHECK(DTensor(z[2]).placements() == Placements{Shard(0)});
  CHECK(redistribute_many({}, {{Replicate()}}).empty());
  CHECK(redistribute_many({}, {}).empty());
}

TEST_CASE("redistribute_many: a change of placement names only returns copies", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {1, 2});
  const at::Tensor x = distributed(numbers({4}), mesh, {Shard(0), Shard(0)});
  CommDebugMode comm;
  const auto y = redistribute_many({x}, {{Replicate(), Shard(0)}});
  CHECK(comm.total() == 0);
  CHECK(DTensor(y[0]).placements() == Placements{Replicate(), Shard(0)});
  for (int64_t r = 0; r < 2; ++r) CHECK_FALSE(DTensor(y[0]).local(r).is_alias_of(DTensor(x).local(r)));
}

TEST_CASE("redistribute_many: gradients come back in one collective", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor a = numbers({6, 5}), b = numbers({3, 8}), c = numbers({2, 4}), d = numbers({4}, at::kLong);
  const at::Tensor xa = distributed(a, mesh, {Shard(0)}, true), xb = distributed(b, mesh, {Shard(1)}, true);
  const at::Tensor xc = distributed(c, mesh, {Shard(0)}), xd = distributed(d, mesh, {Shard(0)});
  const auto y = redistribute_many({xa, xb, xc, xd}, {{Shard(1)}, {Shard(0)}, {Replicate()}, {Replicate()}});
  CHECK(y[0].requires_grad());
  CHECK(y[1].requires_grad());
  CHECK_FALSE(y[2].requires_grad());
  CHECK_FALSE(y[3].requires_grad());
  // Weights that differ between elements.
  const at::Tensor wa = distribute_tensor(numbers({6, 5}), mesh, {Shard(1)}),
                   wb = distribute_tensor(numbers({3, 8}) * 2, mesh, {Shard(0)});
  const at::Tensor loss = full_tensor((y[0] * wa).sum()) + full_tensor((y[1] * wb).sum());
  CommDebugMode comm;
  loss.backward();
  CHECK(at::equal(full_tensor(xa.grad()), numbers({6, 5})));
  CHECK(at::equal(full_tensor(xb.grad()), numbers({3, 8}) * 2));
  CHECK(DTensor(xa.grad()).placements() == Placements{Shard(0)});
  CHECK(DTensor(xb.grad()).placements() == Placements{Shard(1)});
  int64_t batched = 0;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op != "redistribute_many") continue;
    ++batched;
    CHECK(e.backward);
    CHECK(e.collective == Collective::kAllToAll);
  }
  CHECK(batched == 1);
}

TEST_CASE("redistribute_many: only defined gradients are sent back", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const at::Tensor x = distributed(numbers({4, 2}), mesh, {Shard(0)}, true),
                   unused = distributed(numbers({2, 6}), mesh, {Shard(1)}, true);
  const auto y = redistribute_many({x, unused}, {{Shard(1)}, {Shard(0)}});
  CommDebugMode comm;
  (y[0] * y[0]).sum().backward();
  CHECK(at::equal(full_tensor(x.grad()), numbers({4, 2}) * 2));
  CHECK_FALSE(unused.grad().defined());
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "redistribute_many") CHECK(e.bytes == 2 * 1 * 8);
  }
}

TEST_CASE("redistribute_many: the gradient of a Partial is replicated", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const at::Tensor x = distributed(numbers({4, 2}), mesh, {Shard(1)}, true);
  const at::Tensor partial = x.sum(1);
  REQUIRE(DTensor(partial).placements() == Placements{Partial()});
  const auto y = redistribute_many({partial, partial}, {{Shard(0)}, {Replicate()}});
  (full_tensor(y[0]).sum() + full_tensor(y[1] * 3).sum()).backward();
  CHECK(at::equal(full_tensor(x.grad()), at::ones_like(numbers({4, 2})) * 4));
}

TEST_CASE("redistribute_many: can be differentiated twice", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const at::Tensor x = distributed(numbers({4, 2}), mesh, {Shard(0)}, true);
  const auto y = redistribute_many({x}, {{Shard(1)}});
  const at::Tensor loss = full_tensor((y[0] * y[0] * y[0]).sum());
  const auto first = torch::autograd::grad({loss}, {x}, {}, std::nullopt, /*create_graph=*/true);
  REQUIRE(first[0].requires_grad());
  full_tensor(first[0].sum()).backward();
  CHECK(at::equal(full_tensor(x.grad()), numbers({4, 2}) * 6));
}

TEST_CASE("redistribute_many: errors", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}), elsewhere(World::local(2), {2});
  const at::Tensor x = distributed(numbers({4}), mesh, {Shard(0)}),
                   y = distributed(numbers({4}), elsewhere, {Shard(0)});
  CHECK_THROWS_WITH(
      redistribute_many({x, x, x}, {{Replicate()}, {Replicate()}}),
      Contains("[redistribute_many] 2 lists of placements for 3 tensors: give one per tensor, or one for all"));
  CHECK_THROWS_WITH(redistribute_many({x, numbers({4})}, {{Replicate()}}),
                    Contains("[redistribute_many] the tensor of shape [4] is not distributed"));
  CHECK_THROWS_WITH(redistribute_many({x}, {{Replicate(), Replicate()}}), Contains("[redistribute_many] `placements`"));
  CHECK_THROWS_WITH(redistribute_many({x}, {{Shard(1)}}), Contains("[redistribute_many]"));
  CHECK_THROWS_WITH(redistribute_many({x, y}, {{Replicate()}}),
                    Contains("only tensors of one world can travel together"));
}

TEST_CASE("redistribute to a mesh: moves the tensor, and its gradient comes back", "[redistribute_many]") {
  const auto world = World::local(6);
  const std::vector<DeviceMesh> meshes = {DeviceMesh(world, {2, 2}), DeviceMesh(world, {3}, {}, {5, 4, 1}),
                                          DeviceMesh(world, {2}, {}, {4, 5}), DeviceMesh(world, {6})};
  const at::Tensor full = numbers({7, 4}), weight = numbers({7, 4}) + 3;
  for (const DeviceMesh& a : meshes) {
    for (const DeviceMesh& b : meshes) {
      if (a == b) continue;
      for (const Placement& from : {Shard(0), Shard(1), Replicate()}) {
        for (const Placement& to : {Shard(0), Replicate()}) {
          const Placements on_a(a.ndim(), from), on_b(b.ndim(), to);
          CAPTURE(a.ranks(), b.ranks(), to_string(on_a), to_string(on_b));
          const at::Tensor x = distributed(full, a, on_a, true);
          const at::Tensor y = redistribute(x, b, on_b);
          CHECK(DTensor(y).mesh() == b);
          CHECK(DTensor(y).placements() == on_b);
          CHECK(at::equal(full_tensor(y), full));
          full_tensor((y * distribute_tensor(weight, b, on_b)).sum()).backward();
          CHECK(DTensor(x.grad()).mesh() == a);
          CHECK(DTensor(x.grad()).placements() == on_a);
          CHECK(at::equal(full_tensor(x.grad()), weight));
        }
      }
    }
  }
}

TEST_CASE("redistribute to a mesh: Partials are reduced first", "[redistribute_many]") {
  const auto world = World::local(4);
  const DeviceMesh a(world, {2}), b(world, {2}, {}, {3, 2});
  const at::Tensor x = distributed(numbers({4, 2}), a, {Shard(1)}, true);
  const at::Tensor y = redistribute(x.sum(1), b, {Shard(0)});
  CHECK(at::equal(full_tensor(y), numbers({4, 2}).sum(1)));
  full_tensor(y).sum().backward();
  CHECK(at::equal(full_tensor(x.grad()), at::ones_like(numbers({4, 2}))));
}

TEST_CASE("redistribute to a mesh: the same mesh, and one with the same parts", "[redistribute_many]") {
  const auto world = World::local(4);
  const DeviceMesh a(world, {4}), b(world, {2, 2});
  const at::Tensor x = distributed(numbers({8}), a, {Shard(0)});
  CHECK(redistribute(x, a, {Shard(0)}).is_same(x));
  CHECK(DTensor(redistribute(x, a, {Replicate()})).placements() == Placements{Replicate()});
  CommDebugMode comm;
  const at::Tensor y = redistribute(x, b, {Shard(0), Shard(0)});
  CHECK(comm.total() == 0);
  CHECK(at::equal(full_tensor(y), numbers({8})));
  for (int64_t r = 0; r < 4; ++r) CHECK_FALSE(DTensor(y).local(r).is_alias_of(DTensor(x).local(r)));
}

TEST_CASE("redistribute to a mesh: a process without a rank there gets no parts", "[redistribute_many]") {
  const auto world = World::fake(4, 0);
  const DeviceMesh a(world, {2}), b(world, {2}, {}, {2, 3});
  const at::Tensor x =
      from_local({numbers({2})}, a, {Shard(0)}, {.shape = std::vector<int64_t>{4}, .grad_placements = {}});
  const at::Tensor y = redistribute(x, b, {Shard(0)});
  CHECK(to_local(y).empty());
  CHECK(y.sizes() == at::IntArrayRef{4});
  const at::Tensor back = redistribute(y, a, {Shard(0)});
  REQUIRE(to_local(back).size() == 1);
  CHECK(to_local(back)[0].sizes() == at::IntArrayRef{2});

  const DeviceMesh c(World::abstract(4), {2}), d(c.world(), {2}, {}, {2, 3});
  CHECK(DTensor(redistribute(zeros({4}, c, {Shard(0)}), d, {Shard(0)})).mesh() == d);
}

TEST_CASE("redistribute to a mesh: errors", "[redistribute_many]") {
  const auto world = World::local(2);
  const DeviceMesh mesh(world, {2}), elsewhere(World::local(2), {2});
  const at::Tensor x = distributed(numbers({4}), mesh, {Shard(0)});
  CHECK_THROWS_WITH(redistribute(numbers({4}), mesh, {Shard(0)}),
                    Contains("[redistribute] the tensor of shape [4] is not distributed"));
  CHECK_THROWS_WITH(redistribute(x, DeviceMesh(), {Shard(0)}), Contains("[redistribute] no mesh"));
  CHECK_THROWS_WITH(redistribute(x, elsewhere, {Shard(0)}), Contains("another world"));
  CHECK_THROWS_WITH(redistribute(x, DeviceMesh(world, {1}), {Shard(0), Shard(0)}),
                    Contains("[redistribute] `placements`"));
}

}  // namespace
}  // namespace dtensor
