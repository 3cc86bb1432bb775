// Products of groups of matrices equal those of plain ATen in every layout, also with experts on different ranks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

// Kernels support at most float32.
OpCase products(const char* name, std::vector<std::vector<int64_t>> shapes, std::vector<int32_t> ends) {
  OpCase c{name, {}, std::move(shapes)};
  c.fn = [ends = std::move(ends)](const Tensors& t) -> Tensors {
    if (ends.empty()) return {at::_grouped_mm(t[0], t[1])};
    const at::Tensor offs = at::tensor(ends, at::kInt);
    const bool split = is_dtensor(t[0]);
    const auto placements = split ? Placements(DTensor(t[0]).placements().size(), Replicate()) : Placements{};
    return {at::_grouped_mm(t[0], t[1], split ? lay_out(offs, DTensor(t[0]).mesh(), placements) : offs)};
  };
  c.make = [](size_t, const std::vector<int64_t>& s) { return at::randn(s, at::kFloat); };
  c.tolerance = 2e-5;
  return c;
}

TEST_CASE("grouped products match ATen in every layout", "[ops][grouped_mm]") {
  OpCase rows = products("rows of experts", {{16, 16}, {4, 16, 8}}, {2, 3, 3, 16});  // one without rows
  rows.silent = [](const std::vector<Placement>& p) {
    return (p[0] == Replicate() && p[1].is_sharded()) || (p[0] == Shard(1) && p[1] == Shard(1));
  };
  check_op(rows);
  OpCase batch = products("a batch", {{4, 8, 16}, {4, 16, 8}}, {});
  batch.silent = [](const std::vector<Placement>& p) {
    return (p[0] == Shard(0) && p[1] == Shard(0)) || (p[0] == Shard(1) && p[1] == Replicate()) ||
           (p[0] == Replicate() && p[1] == Shard(2));
  };
  check_op(batch);
  check_op(products("columns of experts", {{4, 8, 16}, {16, 24}}, {8, 8, 16, 24}));
  check_op(products("inner dims of groups", {{16, 32}, {32, 8}}, {8, 8, 16, 32}));
}

TEST_CASE("grouped products: every rank computes its own experts, without communication", "[ops][grouped_mm]") {
  const DeviceMesh mesh(World::local(4), {4}, {"ep"});
  const at::Tensor x = at::randn({64, 32}, at::kFloat), w = at::randn({8, 32, 16}, at::kFloat);
  const at::Tensor ends = at::tensor({8, 16, 24, 32, 40, 48, 56, 64}, at::kInt);
  CommDebugMode comm;
  const at::Tensor y = at::_grouped_mm(lay_out(x, mesh, {Replicate()}), lay_out(w, mesh, {Shard(0)}),
                                       lay_out(ends, mesh, {Replicate()}));
  CHECK(comm.total() == 0);
  CHECK(DTensor(y).placements() == Placements{Partial()});
  CHECK(at::allclose(full_tensor(y), at::_grouped_mm(x, w, ends), 1e-4, 1e-5));
}

TEST_CASE("grouped products: invalid arguments are rejected by name", "[ops][grouped_mm]") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  const auto on_mesh = [&](std::vector<int64_t> sizes) {
    return lay_out(at::randn(sizes, at::kFloat), mesh, {Replicate()});
  };
  CHECK_THROWS_WITH(at::_grouped_mm(on_mesh({4, 8, 16}), on_mesh({4, 12, 8})), Catch::Contains("inner dims"));
  CHECK_THROWS_WITH(at::_grouped_mm(on_mesh({8, 16}), on_mesh({4, 16, 8})), Catch::Contains("'offs'"));
}

}  // namespace
}  // namespace dtensor::testing
