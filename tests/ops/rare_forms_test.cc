// Calls that LibTorch accepts and few programs use.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/linalg_inv_ex.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {

TEST_CASE("cat skips empty lists, plain and distributed, and copies a single tensor", "[ops][rare_forms]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor values = at::rand({8, 6}, at::kDouble), nothing = at::empty({0}, at::kDouble);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const auto x = lay_out(values, mesh, {p});
    for (const at::Tensor& empty :
         {nothing, lay_out(nothing, mesh, {Replicate()}), lay_out(nothing, mesh, {Shard(0)})}) {
      for (const int64_t dim : {0, 1}) {
        CAPTURE(to_string(Placements{p}), dim);
        CommDebugMode comm;
        const at::Tensor alone = at::cat({empty, x}, dim);
        CHECK(comm.total() == 0);
        CHECK(difference(alone, values) == std::nullopt);
        CHECK(difference(at::cat({empty, x, x}, dim), at::cat({values, values}, dim)) == std::nullopt);
        CHECK(difference(at::cat({x, empty}, dim), values) == std::nullopt);
      }
    }
  }
}

TEST_CASE("nested tensors are rejected by name", "[ops][rare_forms]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto x = distribute_tensor(at::rand({2, 3}), mesh);
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::rand({2, 3}), at::rand({4, 3})});
  CHECK_THROWS_WITH(distribute_tensor(nested, mesh), Catch::Contains("a nested tensor cannot be distributed"));
  CHECK_THROWS_WITH(at::_nested_tensor_from_tensor_list({x, x}),
                    Catch::Contains("aten::_nested_tensor_from_tensor_list") && Catch::Contains("pad_sequence"));
  CHECK_THROWS_WITH(x.mul(nested), Catch::Contains("argument 'other' is a nested tensor"));
}

TEST_CASE("nearest interpolation of an empty batch gives an empty batch", "[ops][rare_forms]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor images = at::empty({0, 3, 4, 4}, at::kDouble);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(2))}) {
    const auto x = lay_out(images, mesh, {p});
    CHECK(difference(at::upsample_nearest2d(x, {8, 8}), at::upsample_nearest2d(images, {8, 8})) == std::nullopt);
  }
}

TEST_CASE("views of an inference tensor are inference tensors, and those of a normal one normal", "[ops][rare_forms]") {
  const DeviceMesh& mesh = test_meshes()[0];
  at::Tensor inside;
  const auto normal = distribute_tensor(at::rand({4, 4}), mesh, {Shard(0)});
  {
    const c10::InferenceMode mode;
    inside = distribute_tensor(at::rand({4, 4}), mesh, {Shard(0)});
    CHECK_FALSE(normal.t().is_inference());
  }
  REQUIRE(inside.is_inference());
  for (const at::Tensor& view : {inside.t(), inside.detach(), inside.select(1, 0), inside.unsqueeze(0)})
    CHECK(view.is_inference());
  CHECK_FALSE((inside + 1).is_inference());
}

TEST_CASE("where accepts a condition of bytes like plain ATen", "[ops][rare_forms]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor x = at::rand({6, 5}, at::kDouble), bytes = x.gt(0.5).to(at::kByte);
  const auto split = lay_out(x, mesh, {Shard(0)}), condition = lay_out(bytes, mesh, {Shard(0)});
  CHECK(difference(at::where(condition, split, -split), at::where(bytes, x, -x)) == std::nullopt);
}

TEST_CASE("inverses of a split batch reduce one number to check for errors, and none without a check",
          "[ops][rare_forms]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor matrices = at::rand({8, 3, 3}, at::kDouble) + 3 * at::eye(3, at::kDouble);
  CommDebugMode comm;
  const auto split = lay_out(matrices, mesh, {Shard(0)});
  const at::Tensor inverse = at::linalg_inv(split);
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() <= 8);
  CHECK(difference(inverse, at::linalg_inv(matrices)) == std::nullopt);
  comm.reset();
  at::linalg_inv_ex(split);
  CHECK(comm.total() == 0);
  at::linalg_inv(lay_out(matrices, mesh, {Replicate()}));
  CHECK(comm.total() == 0);
}

}  // namespace dtensor::testing
