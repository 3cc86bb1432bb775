// Slices, selections and windows of split dims: the values of plain ATen, read and written, and no more bytes than
// ranks lack.
#include <ATen/TensorOperators.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/ops/halo_compare.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

TEST_CASE("halo: slices match ATen", "[ops][halo]") {
  check("slice", {{13, 5}}, [](auto& t) { return Tensors{t[0].slice(0, 1, 12) * 2}; });
  check("slice of two dims", {{13, 9}}, [](auto& t) { return Tensors{t[0].slice(0, 2).slice(1, 0, -1) * 2}; });
  check("slice with a step", {{17, 5}}, [](auto& t) { return Tensors{t[0].slice(0, 1, 17, 3) * 2}; });
  check("slice of little", {{13, 5}}, [](auto& t) { return Tensors{t[0].slice(0, 7, 9) * 2}; });
  check("slice of nothing", {{13, 5}}, [](auto& t) { return Tensors{t[0].slice(0, 5, 5) * 2}; });
  check("narrow", {{13, 5}}, [](auto& t) { return Tensors{t[0].narrow(0, 6, 7) * 2}; });
  check("select", {{13, 5}}, [](auto& t) { return Tensors{t[0].select(0, 7) * 2}; });
  check("select of the second dim", {{3, 7, 5}}, [](auto& t) { return Tensors{t[0].select(1, -1) * 2}; });
  check("diff", {{13, 6}}, [](auto& t) { return Tensors{at::diff(t[0], 1, 0)}; });
  check("diff twice", {{13, 6}}, [](auto& t) { return Tensors{at::diff(t[0], 2, 1)}; });
  check("stencil", {{9, 11}}, [](auto& t) {
    const auto inner = [](const at::Tensor& u) { return u.slice(0, 1, -1); };
    return Tensors{inner(t[0]).slice(1, 2) + inner(t[0]).slice(1, 0, -2) - 2 * inner(t[0]).slice(1, 1, -1)};
  });
}

TEST_CASE("halo: windows match ATen", "[ops][halo]") {
  check("unfold", {{13, 5}}, [](auto& t) { return Tensors{t[0].unfold(0, 3, 1) * 2}; });
  check("unfold with gaps", {{17, 4}}, [](auto& t) { return Tensors{t[0].unfold(0, 2, 3) * 2}; });
  check("unfold wide", {{9, 4}}, [](auto& t) { return Tensors{t[0].unfold(0, 6, 1) * 2}; });
  check("unfold of the second dim", {{3, 11}}, [](auto& t) { return Tensors{t[0].unfold(1, 4, 2) * 2}; });
}

TEST_CASE("halo: writes to a slice reach its base, and writes to the base reach the slice", "[ops][halo]") {
  for (const Placements& placements :
       {Placements{Shard(0), Shard(1)}, Placements{Shard(0), Replicate()}, Placements{Replicate(), Shard(0)},
        Placements{Shard(0), Shard(0)}, Placements{StridedShard(0, 3), Shard(0)}}) {
    CAPTURE(to_string(placements));
    const DeviceMesh mesh(World::local(6), {2, 3}, {"y", "x"});
    at::Tensor plain = at::randn({17, 11}, at::kDouble);
    at::Tensor split = lay_out(plain, mesh, placements);
    const auto both = [&](const auto& f) {
      f(plain);
      f(split);
      CHECK(difference(split, plain) == std::nullopt);
    };
    const auto inner = [](const at::Tensor& u) { return u.slice(0, 1, -1).slice(1, 1, -1); };
    both([&](at::Tensor& u) { inner(u).mul_(3); });
    both([&](at::Tensor& u) { u.slice(0, 1, 16, 2).fill_(7); });
    both([&](at::Tensor& u) { u.select(0, 9).add_(1); });
    both([&](at::Tensor& u) { inner(u).copy_(u.slice(0, 2).slice(1, 1, -1) + u.slice(0, 0, -2).slice(1, 1, -1)); });
    const at::Tensor plain_view = inner(plain), split_view = inner(split);
    both([&](at::Tensor& u) { u.mul_(2); });
    CHECK(difference(split_view, plain_view) == std::nullopt);
    const at::Tensor plain_windows = plain.unfold(0, 3, 2), split_windows = split.unfold(0, 3, 2);
    both([&](at::Tensor& u) { u.add_(1); });
    CHECK(difference(split_windows, plain_windows) == std::nullopt);
  }
}

TEST_CASE("halo: a stencil of slices receives the edges, and the rows by which the parts' borders shift",
          "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"x"});
  const at::Tensor u = meta_tensor(mesh, {4096, 512}, {Shard(0)});
  const int64_t row = 512 * 4;
  at::Tensor r;
  // 4095 rows are split where 4096 are: 1024, 1024, 1024 and 1023.
  CHECK(traffic([&] { r = u.slice(0, 1) - u.slice(0, 0, -1); }) == Traffic{1, row});
  CHECK(DTensor(r).placements() == Placements{Shard(0)});
  CHECK(traffic([&] { r = at::diff(u, 1, 0); }) == Traffic{1, row});
  // 4094 rows: 1024, 1024, 1024, 1022.
  CHECK(traffic([&] { r = u.slice(0, 2) + u.slice(0, 0, -2) - 2 * u.slice(0, 1, -1); }) == Traffic{2, 3 * row});
  CHECK(DTensor(r).placements() == Placements{Shard(0)});
  // 4092 rows: 1023 each, so that the last part begins three rows earlier; for offset 4 it has them, for offset 3 one
  // row is missing.
  CHECK(traffic([&] { r = u.slice(0, 0, -4) * 1; }) == Traffic{1, 3 * row});
  CHECK(traffic([&] { r = u.slice(0, 4) * 1; }) == Traffic{1, 4 * row - row});
  // Every second row: each rank already has its own.
  CHECK(traffic([&] { r = u.slice(0, 0, 4096, 2) * 1; }) == Traffic{0, 0});
  CHECK(r.size(0) == 2048);
  CHECK(traffic([&] { r = u.slice(0, 1, 4096, 2) * 1; }) == Traffic{0, 0});
  // One row goes to all.
  CHECK(traffic([&] { r = u.select(0, -1) * 1; }) == Traffic{1, row});
  CHECK(DTensor(r).placements() == Placements{Replicate()});
  CHECK(traffic([&] { r = u.slice(0, 5, 7) * 1; }) == Traffic{1, 2 * row});
  // Windows of 3 rows: two more each.
  CHECK(traffic([&] { r = u.unfold(0, 3, 1); }) == Traffic{1, 2 * row});
  CHECK(DTensor(r).placements() == Placements{Shard(0)});
}

}  // namespace
}  // namespace dtensor::testing
