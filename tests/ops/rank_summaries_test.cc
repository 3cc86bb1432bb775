// Best elements, logarithms of sums and moments along split dims: the values of plain ATen, at the cost of a few
// numbers per rank.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/cost_by_bytes.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
// Large enough that the candidates are fewer than the elements.
const std::vector<std::vector<int64_t>> kShapes = {{3, 26}};

TEST_CASE("rank summaries: best elements match ATen", "[ops][best_elements]") {
  const auto check = [](const char* name, auto fn) {
    OpCase c{name, fn, kShapes};
    c.strided_inputs = true;
    check_op(c, /*max_2d=*/40);
  };
  check("max.dim", [](auto& t) { return Tensors{std::get<0>(t[0].max(1))}; });
  check("max.dim keepdim", [](auto& t) { return Tensors{std::get<0>(t[0].max(-1, true))}; });
  check("min.dim", [](auto& t) { return Tensors{std::get<0>(t[0].min(1))}; });
  check("max.dim index", [](auto& t) { return Tensors{std::get<1>(t[0].max(1))}; });
  check("min.dim index", [](auto& t) { return Tensors{std::get<1>(t[0].min(1, true))}; });
  check("argmax", [](auto& t) { return Tensors{t[0].argmax(1)}; });
  check("argmin", [](auto& t) { return Tensors{t[0].argmin(1, true)}; });
  check("argmax of all", [](auto& t) { return Tensors{t[0].argmax()}; });
  check("argmin of all", [](auto& t) { return Tensors{t[0].argmin(std::nullopt, true)}; });
  check("topk", [](auto& t) {
    auto [values, indices] = t[0].topk(2, 1);
    return Tensors{values, indices};
  });
  check("topk smallest", [](auto& t) {
    auto [values, indices] = t[0].topk(3, -1, /*largest=*/false);
    return Tensors{values, indices};
  });
}

TEST_CASE("rank summaries: moments and logsumexp match ATen", "[ops][moments]") {
  const auto check = [](const char* name, std::vector<std::vector<int64_t>> shapes, auto fn) {
    OpCase c{name, fn, std::move(shapes)};
    c.strided_inputs = true;
    check_op(c, /*max_2d=*/40);
  };
  check("logsumexp", kShapes, [](auto& t) { return Tensors{t[0].logsumexp(1)}; });
  check("logsumexp keepdim", kShapes, [](auto& t) { return Tensors{t[0].logsumexp(-1, true)}; });
  check("logsumexp of two dims", {{7, 5, 2}}, [](auto& t) {
    return Tensors{t[0].logsumexp(std::vector<int64_t>{0, 1})};
  });
  check("var", kShapes, [](auto& t) { return Tensors{t[0].var(1)}; });
  check("std of all", kShapes, [](auto& t) { return Tensors{t[0].std()}; });
  check("var correction", kShapes, [](auto& t) { return Tensors{t[0].var(1, c10::Scalar(0), true)}; });
  check("var of two dims", {{7, 5, 2}}, [](auto& t) {
    return Tensors{t[0].var(std::vector<int64_t>{0, 1}, c10::Scalar(2))};
  });
  check("var_mean", kShapes, [](auto& t) {
    auto [var, mean] = at::var_mean(t[0], std::vector<int64_t>{1});
    return Tensors{var, mean};
  });
}

TEST_CASE("rank summaries: a value and an index per rank and row are sent", "[ops][best_elements]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor x = lay_out(at::randn({3, 1000}, at::kFloat), mesh, {Shard(1)});
  const auto traffic = [&](const auto& f, int64_t calls, int64_t bytes) {
    CommDebugMode comm;
    f();
    CHECK(comm.total() == calls);
    CHECK(comm.bytes() <= bytes);
  };
  traffic([&] { x.argmax(1); }, 1, 3 * 3 * (4 + 8));
  traffic([&] { x.max(1); }, 1, 3 * 3 * (4 + 8));
  traffic([&] { x.argmax(); }, 1, 3 * (4 + 8));
  traffic([&] { x.topk(5, 1); }, 1, 3 * 3 * 5 * (4 + 8));
  traffic([&] { x.logsumexp(1); }, 1, 3 * 3 * 4);
  traffic([&] { x.var(1); }, 1, 3 * 3 * 8);
  traffic([&] { x.std(); }, 1, 3 * 8);
}

TEST_CASE("rank summaries: ties, nan and infinities", "[ops][best_elements]") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"});
  at::Tensor x = at::zeros({5, 40}, at::kDouble);
  x[0].slice(0, 13).fill_(2);  // ties on several ranks
  x[1].fill_(-kInf);
  x[2][30] = std::nan("");
  x[2][3] = kInf;
  x[3].fill_(std::nan(""));
  for (const Placements& placements :
       {Placements{Shard(1), Shard(1)}, Placements{Replicate(), Shard(1)}, Placements{Shard(0), Shard(1)},
        Placements{Shard(1), Shard(0)}, Placements{StridedShard(1, 3), Shard(1)}}) {
    CAPTURE(to_string(placements));
    const at::Tensor d = lay_out(x, mesh, placements);
    CHECK(at::equal(full_tensor(d.argmax(1)), x.argmax(1)));
    CHECK(at::equal(full_tensor(d.argmin(1)), x.argmin(1)));
    CHECK(at::equal(full_tensor(std::get<1>(d.max(1))), std::get<1>(x.max(1))));
    CHECK(full_tensor(std::get<0>(d.max(1))).equal(std::get<0>(x.max(1))) == false);  // nan is unequal to nan
    CHECK(full_tensor(std::get<0>(d.max(1))).isnan().equal(std::get<0>(x.max(1)).isnan()));
    auto [values, indices] = d.topk(3, 1);
    const at::Tensor whole_values = full_tensor(values), whole_indices = full_tensor(indices);
    CHECK(at::allclose(whole_values, std::get<0>(x.topk(3, 1)), 0, 0, /*equal_nan=*/true));
    // The indices belong to elements with these values, each to its own.
    CHECK(at::allclose(x.gather(1, whole_indices), whole_values, 0, 0, /*equal_nan=*/true));
    for (int64_t row = 0; row < 5; ++row) {
      CHECK(std::get<0>(whole_indices[row].sort()).diff().gt(0).all().item<bool>());
    }
  }
}

TEST_CASE("rank summaries: ranks that hold little or nothing", "[ops][best_elements]") {
  const DeviceMesh mesh(World::local(5), {5}, {"tp"});
  const at::Tensor x = at::randn({6, 2, 3}, at::kDouble);  // 2, 2, 2, 0, 0 of the first dim
  const at::Tensor d = lay_out(x, mesh, {Shard(0)});
  CHECK(at::equal(full_tensor(d.argmax()), x.argmax()));
  const at::Tensor wide = at::randint(-9, 9, {41, 2}, at::kLong);  // 9, 9, 9, 9, 5
  const at::Tensor split = lay_out(wide, mesh, {Shard(0)});
  CHECK(at::equal(full_tensor(std::get<0>(split.topk(6, 0))),
                  std::get<0>(wide.topk(6, 0))));  // more than a rank may hold
  CHECK(at::equal(full_tensor(split.argmax(0)), wide.argmax(0)));
  const at::Tensor bools = wide.gt(5);
  CHECK(at::equal(full_tensor(std::get<1>(lay_out(bools, mesh, {Shard(0)}).max(0))), std::get<1>(bools.max(0))));
  const at::Tensor constant = at::full({2, 41}, 0.1, at::kFloat);  // 9, 9, 9, 9, 5
  CHECK(full_tensor(lay_out(constant, mesh, {Shard(1)}).std(1)).eq(0).all().item<bool>());
  const at::Tensor few = at::randn({7, 20}, at::kDouble);
  CHECK(full_tensor(lay_out(few, mesh, {Shard(1)}).var(1, c10::Scalar(20))).isinf().all().item<bool>());
  CHECK(at::allclose(full_tensor(lay_out(few + 1e9, mesh, {Shard(1)}).var(1)), (few + 1e9).var(1), 1e-6));
}

TEST_CASE("rank summaries: errors are those of plain ATen", "[ops][best_elements]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor d = lay_out(at::randn({3, 100}, at::kDouble), mesh, {Shard(1)});
  CHECK_THROWS_WITH(d.topk(101, 1), Catch::Contains("selected index k out of range"));
  CHECK_THROWS_WITH(d.argmax(2), Catch::Contains("Dimension out of range"));
  CHECK_THROWS_WITH(d.var(std::vector<int64_t>{1, -1}, c10::Scalar(1)), Catch::Contains("appears multiple times"));
}

TEST_CASE("rank summaries: the same plans in an abstract world", "[ops][best_elements]") {
  const DeviceMesh mesh(World::abstract(1024), {1024}, {"tp"});
  const at::Tensor d =
      distribute_tensor(at::empty({8, 131072}, at::TensorOptions(at::kMeta).dtype(at::kFloat)), mesh, {Shard(1)});
  CommDebugMode comm;
  auto [values, indices] = d.topk(4, 1);
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == 1023 * 8 * 4 * (4 + 8));
  CHECK(values.sizes() == at::IntArrayRef{8, 4});
  CHECK(indices.scalar_type() == at::kLong);
}

TEST_CASE("rank summaries: each rank combines a part of the rows, and all get the results", "[ops][moments]") {
  const auto check = [](const at::Tensor& x, const at::Tensor& d) {
    const auto same = [](const at::Tensor& ours, const at::Tensor& plain) {
      const auto wrong = difference(ours, plain, 1e-12);
      INFO(wrong.value_or(""));
      CHECK_FALSE(wrong);
    };
    CommDebugMode comm;
    const at::Tensor var = d.var(1);
    CHECK(comm.count("all_to_all") == 1);
    CHECK(comm.count("all_gather") == 1);
    CHECK(comm.total() == 2);
    same(var, x.var(1));
    same(d.std(1, /*unbiased=*/false, /*keepdim=*/true), x.std(1, false, true));
    same(d.logsumexp(1), x.logsumexp(1));
    same(std::get<1>(at::var_mean(d, std::vector<int64_t>{1, 2}, c10::Scalar(0))), x.mean({1, 2}));
    same(d.argmax(1), x.argmax(1));
    same(std::get<0>(d.min(1, true)), std::get<0>(x.min(1, true)));
  };
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4}, {2, 3}, {5}}) {
    const World world = World::local(shape.size() == 1 ? shape[0] : shape[0] * shape[1]);
    const CostByBytes by_bytes(world);
    const DeviceMesh mesh(world, shape);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{7, 41, 3}, {1, 26, 5}, {4, 31, 1}}) {
      const at::Tensor x = at::randn(sizes, at::kDouble);
      std::vector<Placements> all = {{Shard(1)}, {StridedShard(1, 2)}};
      if (shape.size() == 2) {
        all = {{Shard(1), Shard(1)},
               {Shard(0), Shard(1)},
               {Shard(1), Shard(2)},
               {Replicate(), Shard(1)},
               {StridedShard(0, 2), Shard(1)}};
      }
      for (const Placements& placements : all) {
        CAPTURE(sizes, to_string(placements));
        check(x, lay_out(x, mesh, placements));
      }
    }
  }
}

TEST_CASE("rank summaries: no cancellation where rows are combined on their ranks", "[ops][moments]") {
  const DeviceMesh mesh(World::local(5), {5});
  const CostByBytes by_bytes(mesh.world());
  const at::Tensor constant = at::randn({64, 1}, at::kFloat).expand({64, 41});  // 9, 9, 9, 9, 5
  CHECK(full_tensor(lay_out(constant, mesh, {Shard(1)}).std(1)).eq(0).all().item<bool>());
  const at::Tensor far = at::randn({7, 41}, at::kDouble) + 1e9;
  CHECK(at::allclose(full_tensor(lay_out(far, mesh, {Shard(1)}).var(1)), far.var(1), 1e-6));
  const at::Tensor halves = at::randn({7, 41}, at::kDouble).to(at::kBFloat16);
  const at::Tensor var = lay_out(halves, mesh, {Shard(1)}).var(1);
  CHECK(var.scalar_type() == at::kBFloat16);
  CHECK(at::allclose(full_tensor(var), halves.to(at::kFloat).var(1).to(at::kBFloat16), 0.01));
}

TEST_CASE("rank summaries: bytes do not grow with the number of ranks", "[ops][moments]") {
  constexpr int64_t kRows = 8192, kNumber = 4 * kRows;
  for (const int64_t ranks : {64, 1024}) {
    const DeviceMesh mesh(World::abstract(ranks), {ranks}, {"dp"});
    const at::Tensor x = distribute_tensor(
        at::empty({32 * ranks, kRows}, at::TensorOptions(at::kMeta).dtype(at::kFloat)), mesh, {Shard(0)});
    const auto bytes = [&](const auto& f) {
      CommDebugMode comm;
      f();
      return comm.bytes();
    };
    CAPTURE(ranks);
    CHECK(bytes([&] { x.var(0); }) <= 3 * kNumber);
    CHECK(bytes([&] { x.std(0); }) <= 3 * kNumber);
    CHECK(bytes([&] { at::var_mean(x, std::vector<int64_t>{0}); }) <= 4 * kNumber);
    CHECK(bytes([&] { x.logsumexp(0); }) <= 2 * kNumber);
    CHECK(bytes([&] { x.argmax(0); }) <= 5 * kNumber);
  }
}

TEST_CASE("rank summaries: ranks combine parts of the rows where that takes up to 1.25 times as long",
          "[ops][moments]") {
  const DeviceMesh mesh(World::abstract(8), {8}, {"tp"});
  const auto parts_are_combined = [&](int64_t rows) {
    const at::Tensor x =
        distribute_tensor(at::empty({rows, 64}, at::TensorOptions(at::kMeta).dtype(at::kFloat)), mesh, {Shard(1)});
    CommDebugMode comm;
    x.var(1);
    return comm.count("all_to_all") == 1;
  };
  // By the estimates alone it would be from 15,250 rows on.
  CHECK(parts_are_combined(11'000));
  CHECK_FALSE(parts_are_combined(7'000));
}

}  // namespace
}  // namespace dtensor::testing
