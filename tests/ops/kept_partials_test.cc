// Operators that keep a Partial, or need only one reduction for many: with numbers, in place, and of the results of
// embedding lookups.
#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;

DeviceMesh mesh_of(int64_t n) { return DeviceMesh(World::local(n), {n}, {"d"}); }

at::Tensor whole(const at::Tensor& t, const DeviceMesh& mesh) { return lay_out(t, mesh, {Replicate()}); }

}  // namespace

TEST_CASE("Checking many tensors for infinities is one collective", "[kept_partials]") {
  const DeviceMesh mesh = mesh_of(3);
  for (const bool broken : {false, true}) {
    Tensors gradients;
    for (int64_t i = 0; i < 4; ++i) {
      at::Tensor g = at::full_like(at::tensor({1., 2., 3., 4., 5.}, at::kDouble), 1.0 + static_cast<double>(i));
      if (broken && i == 2) g[4] = kInf;
      gradients.push_back(lay_out(g, mesh, {Shard(0)}));
    }
    CommDebugMode comm;
    at::Tensor all = at::isfinite(gradients[0]).all(), any = at::isinf(gradients[0]).any();
    for (size_t i = 1; i < gradients.size(); ++i) {
      all = all.logical_and(at::isfinite(gradients[i]).all());
      any = any.logical_or(at::isinf(gradients[i]).any());
    }
    CHECK(comm.total() == 0);
    CHECK(all.item<bool>() == !broken);
    CHECK(any.item<bool>() == broken);
    CHECK(comm.total() == 2);
  }
}

TEST_CASE("A number of another type does not reduce, and works in place", "[kept_partials]") {
  const DeviceMesh mesh = mesh_of(2);
  const at::Tensor x = at::tensor({1., -2., 3.}, at::kDouble);
  const auto p = [&](ReduceOp op) { return lay_out(x, mesh, {Partial(op)}); };
  for (const at::Tensor& y :
       {p(ReduceOp::kSum) * 2, p(ReduceOp::kSum).mul(at::native::wrapped_scalar_tensor(2)),
        p(ReduceOp::kSum).mul_(at::native::wrapped_scalar_tensor(2)),
        p(ReduceOp::kSum).div_(at::native::wrapped_scalar_tensor(0.5)), p(ReduceOp::kAvg).mul_(2)}) {
    CHECK(meta_for_read(y).spec->has_partial());
    CHECK(difference(y, x * 2) == std::nullopt);
  }
  CHECK(difference(p(ReduceOp::kSum).add_(at::native::wrapped_scalar_tensor(true)), x + 1) == std::nullopt);
  CHECK(difference(p(ReduceOp::kSum).add_(whole(at::tensor({1, 0, 1}, at::kLong).to(at::kBool), mesh)),
                   at::tensor({2., -2., 4.}, at::kDouble)) == std::nullopt);
  CHECK(meta_for_read(p(ReduceOp::kMax) + 1).spec->has_partial());
  CHECK_FALSE(meta_for_read(p(ReduceOp::kMax) + kInf).spec->has_partial());
  CHECK_FALSE(meta_for_read(p(ReduceOp::kSum).div(0.0)).spec->has_partial());
  CHECK(meta_for_read(p(ReduceOp::kSum).div(2.0)).spec->has_partial());  // not the cached decision for 0
  CHECK_THROWS_WITH(p(ReduceOp::kSum).div_(0.0), Catch::Contains("redistribute it first"));
}

TEST_CASE("Filling a Partial over several mesh dims", "[kept_partials]") {
  const DeviceMesh& mesh = test_meshes()[3];  // (2, 3)
  const Placement sum = Partial(), avg = Partial(ReduceOp::kAvg), product = Partial(ReduceOp::kProduct);
  const at::Tensor x = at::tensor({1., -2., 3.}, at::kDouble), mask = x.lt(2);
  const std::vector<Placements> layouts = {{sum, sum},         {sum, avg},         {avg, sum},
                                           {product, product}, {sum, Replicate()}, {Shard(0), sum}};
  for (const Placements& layout : layouts) {
    CAPTURE(to_string(layout));
    const auto p = [&] { return lay_out(x, mesh, layout); };
    CHECK(difference(p().fill_(5), at::full_like(x, 5)) == std::nullopt);
    CHECK(difference(p().zero_(), at::zeros_like(x)) == std::nullopt);
    // A new tensor of that value is replicated where the old one was Partial: it needs no reduction.
    Placements whole = layout;
    for (Placement& placement : whole) placement = placement.is_partial() ? Replicate() : placement;
    const at::Tensor two = lay_out(at::scalar_tensor(2, at::kDouble), mesh, {Replicate(), Replicate()});
    const at::Tensor filled = call_op("aten::fill.Scalar", {p(), 5})[0],
                     by_tensor = call_op("aten::fill.Tensor", {p(), two})[0];
    const at::Tensor zeroed = call_op("aten::zero", {p()})[0];
    for (const at::Tensor& t : {filled, by_tensor, zeroed}) CHECK(meta_for_read(t).spec->placements() == whole);
    CHECK(difference(filled, at::full_like(x, 5)) == std::nullopt);
    CHECK(difference(by_tensor, at::full_like(x, 2)) == std::nullopt);
    CHECK(difference(zeroed, at::zeros_like(x)) == std::nullopt);
    CHECK(difference(p().masked_fill_(lay_out(mask, mesh, {Replicate(), Replicate()}), 7), x.masked_fill(mask, 7)) ==
          std::nullopt);
    if (layout[0] == product) continue;
    CHECK(difference(p().add_(2), x + 2) == std::nullopt);
    CHECK(difference(p().add_(lay_out(mask, mesh, {Replicate(), Replicate()})), x + mask) == std::nullopt);
  }
}

TEST_CASE("A MaskPartial is scaled, filled and zeroed in place", "[kept_partials]") {
  const DeviceMesh mesh = mesh_of(2);
  const at::Tensor table = at::tensor({1., 2., 3., 4., 5., 6.}, at::kDouble).view({3, 2}),
                   ids = at::tensor({2, 0, 1}, at::kLong);
  const at::Tensor expected = at::cat({table.select(0, 2), table.select(0, 0), table.select(0, 1)}).view({3, 2});
  const auto looked_up = [&] {
    return call_op("aten::embedding", {lay_out(table, mesh, {Shard(0)}), whole(ids, mesh)})[0];
  };
  const Placements layout = meta_for_read(looked_up()).spec->placements();
  REQUIRE(layout[0].is_mask_partial());
  for (const at::Tensor& y :
       {looked_up().mul_(2), looked_up().mul_(2.0), looked_up().mul_(at::native::wrapped_scalar_tensor(2)),
        looked_up().mul_(whole(at::scalar_tensor(2, at::kDouble), mesh)), looked_up().div_(0.5)}) {
    CHECK(meta_for_read(y).spec->placements() == layout);
    CHECK(difference(y, expected * 2) == std::nullopt);
  }
  CHECK(difference(looked_up().zero_(), at::zeros_like(expected)) == std::nullopt);
  CHECK(difference(looked_up().fill_(3), at::full_like(expected, 3)) == std::nullopt);
  CHECK(difference(looked_up().neg_(), -expected) == std::nullopt);
}

}  // namespace dtensor::testing
