// Scope guards: their effect inside, and that nothing remains outside.
#include "dtensor/scopes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

const DeviceMesh& four_in_line() {
  static const DeviceMesh m(World::local(4), {4}, {"x"});
  return m;
}

}  // namespace

TEST_CASE("scopes: factories inside a MeshScope are replicated on its mesh; the innermost applies") {
  const DeviceMesh other(World::local(2), {2}, {"y"});
  {
    MeshScope outer(four_in_line());
    const auto positions = at::arange(5);
    REQUIRE(is_dtensor(positions));
    CHECK(DTensor(positions).placements() == Placements{Replicate()});
    CHECK(at::equal(full_tensor(positions), at::arange(5).is_same(positions) ? positions : full_tensor(at::arange(5))));
    {
      MeshScope inner(other);
      CHECK(DTensor(at::zeros({2})).mesh() == other);
    }
    CHECK(DTensor(at::zeros({2})).mesh() == four_in_line());
    const auto random = at::rand({16});
    for (int64_t i = 1; i < 4; ++i) CHECK(at::equal(DTensor(random).local(0), DTensor(random).local(i)));
  }
  CHECK_FALSE(is_dtensor(at::zeros({2})));
  CHECK_THROWS_AS(MeshScope(DeviceMesh()), c10::ValueError);
  CHECK_FALSE(is_dtensor(at::zeros({2})));
}

TEST_CASE("scopes: ImplicitReplication allows plain tensors") {
  const auto d = ones({4, 2}, four_in_line(), {Shard(0)});
  const auto plain = at::ones({4, 2});
  CHECK_THROWS_WITH(d.add(plain), Catch::Contains("ImplicitReplication") && Catch::Contains("aten::add"));
  {
    ImplicitReplication allowed;
    CHECK(at::equal(full_tensor(d.add(plain)), at::ones({4, 2}).mul(2)));
  }
  CHECK_THROWS(d.add(plain));
}

TEST_CASE("scopes: module paths nest") {
  CHECK(current_scope().module_path.empty());
  ModulePath model("model");
  {
    ModulePath layer("layers.0");
    ModulePath nothing("");
    CHECK(current_scope().module_path == "model.layers.0");
  }
  CHECK(current_scope().module_path == "model");
}

TEST_CASE("scopes: an exception closes them") {
  try {
    MeshScope a(four_in_line());
    ImplicitReplication b;
    ReplicateUnsupported c;
    DelayGradientReduction d;
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  const DispatchScope& s = current_dispatch_scope();
  CHECK_FALSE((s.mesh.defined() || s.implicit_replication || s.replicate_unsupported || s.delay_gradient_reduction));
  CHECK_FALSE(is_dtensor(at::zeros({2})));
}

TEST_CASE("scopes: delayed gradients are reduced once, in place of .grad") {
  const auto w =
      distribute_tensor(at::arange(6, at::kDouble).view({2, 3}), four_in_line(), {Replicate()}).requires_grad_();
  const auto unused = zeros({2}, four_in_line(), {Replicate()}, {.requires_grad = true});
  const auto x = distribute_tensor(at::arange(8, at::kDouble).view({4, 2}), four_in_line(), {Shard(0)});
  const auto expected = at::arange(8, at::kDouble).view({4, 2}).t().mm(at::ones({4, 3}, at::kDouble)).mul(3);
  CommDebugMode comm;
  {
    DelayGradientReduction delay;
    for (int i = 0; i < 3; ++i) x.mm(w).sum().backward();
  }
  REQUIRE(w.grad().defined());
  CHECK(DTensor(w.grad()).placements()[0].is_partial());
  CHECK(comm.total() == 0);
  reduce_gradients({w, unused, at::ones({2})});
  CHECK(DTensor(w.grad()).placements() == Placements{Replicate()});
  CHECK(at::equal(full_tensor(w.grad()), expected));
  REQUIRE(comm.total() == 1);
  CHECK(comm.count(Collective::kAllReduce) == 1);
  CHECK(comm.events()[0].cause.op == "reduce_gradients");
  CHECK_FALSE(comm.events()[0].cause.implicit);
  reduce_gradients({w});
  CHECK(comm.total() == 1);
}

}  // namespace dtensor
