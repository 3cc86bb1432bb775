// Operators that move elements along split dims: the values of plain ATen, the layout of the input, and no more bytes
// than ranks lack.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/reflection_pad1d.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/reflection_pad3d.h>
#include <ATen/ops/replication_pad1d.h>
#include <ATen/ops/replication_pad2d.h>
#include <ATen/ops/replication_pad3d.h>
#include <ATen/ops/roll.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/remembered_layouts.h"
#include "dtensor/scopes.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "propagation/strategy_cache.h"
#include "tests/ops/halo_compare.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/property.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

TEST_CASE("halo: roll and flip match ATen", "[ops][halo]") {
  check("roll", {{7, 5}}, [](auto& t) { return Tensors{t[0].roll({1}, {0})}; });
  check("roll back", {{7, 5}}, [](auto& t) { return Tensors{t[0].roll({-2}, {1})}; });
  check("roll of two dims", {{9, 6}}, [](auto& t) { return Tensors{t[0].roll({3, -1}, {0, 1})}; });
  check("roll of one dim twice", {{9, 2}}, [](auto& t) { return Tensors{t[0].roll({3, 2}, {0, -2})}; });
  check("roll beyond the size", {{5, 4}}, [](auto& t) { return Tensors{t[0].roll({13, -9}, {0, 1})}; });
  check("roll of a list", {{11}}, [](auto& t) { return Tensors{t[0].roll({4})}; });
  check("flip", {{7, 5}}, [](auto& t) { return Tensors{t[0].flip({0})}; });
  check("flip of two dims", {{9, 6}}, [](auto& t) { return Tensors{t[0].flip({0, 1})}; });
}

TEST_CASE("halo: shifts by zero do not communicate", "[ops][halo]") {
  const DeviceMesh mesh(World::local(3), {3});
  const auto x = distribute_tensor(at::arange(10), mesh, {Shard(0)});
  CommDebugMode comm;
  for (const at::Tensor& y : {x.roll(0, 0), x.roll(20, 0), x.roll({3, -3}, {0, 0}), x.flip(at::IntArrayRef())}) {
    CHECK(to_string(DTensor(y).placements()) == "S(0)");
    CHECK(at::equal(full_tensor(y), at::arange(10)));
    CHECK_FALSE(y.is_same(x));
  }
  CHECK(comm.total() == 4);  // full_tensor()
}

TEST_CASE("halo: a shift by zero along a split dim lets other dims be rolled without communication", "[ops][halo]") {
  const auto plain = at::arange(60).view({6, 5, 2});
  const auto x = distribute_tensor(plain, DeviceMesh(World::local(3), {3}), {Shard(0)});
  CommDebugMode comm;
  for (const auto& shifts : std::vector<std::vector<int64_t>>{{0, 2, 0}, {6, -1, 1}, {-12, 0, 3}}) {
    const at::Tensor y = x.roll(shifts, {0, 1, 2});
    CHECK(to_string(DTensor(y).placements()) == "S(0)");
    CHECK(comm.total() == 0);
    CHECK(at::equal(DTensor(y).local(1), plain.roll(shifts, {0, 1, 2}).narrow(0, 2, 2)));
  }
}

TEST_CASE("halo: padding matches ATen", "[ops][halo]") {
  check("pad", {{7, 5}}, [](auto& t) { return Tensors{at::constant_pad_nd(t[0], {1, 2, 3, 1})}; });
  check("pad with a number", {{7, 5}}, [](auto& t) { return Tensors{at::constant_pad_nd(t[0], {1, 2}, 0.5)}; });
  check("pad by more than the parts", {{4, 3}}, [](auto& t) {
    return Tensors{at::constant_pad_nd(t[0], {0, 0, 9, 0})};
  });
  check("crop", {{9, 6}}, [](auto& t) { return Tensors{at::constant_pad_nd(t[0], {-1, -2, -2, 1})}; });
}

// Without rules for replicated dims: only split ones.
void check_split(const char* name, const Ints& shape, const Placements& placements, const DeviceMesh& mesh,
                 const std::function<at::Tensor(const at::Tensor&)>& fn) {
  CAPTURE(name, to_string(placements));
  const at::Tensor plain = at::randn(shape, at::kDouble).requires_grad_();
  at::Tensor split = lay_out(plain, mesh, placements).requires_grad_();
  const at::Tensor expected = fn(plain), actual = fn(split);
  CHECK(difference(actual.detach(), expected.detach()) == std::nullopt);
  CHECK(DTensor(actual).placements() == placements);
  const at::Tensor seed = at::randn(expected.sizes(), at::kDouble);
  expected.backward(seed);
  actual.backward(lay_out(seed, mesh, placements));
  CHECK(difference(split.grad(), plain.grad()) == std::nullopt);
}

TEST_CASE("halo: reflection and replication", "[ops][halo]") {
  const DeviceMesh line(World::local(4), {4}, {"x"}), grid(World::local(6), {2, 3}, {"y", "x"});
  for (const auto& [mesh, placements] :
       {std::pair(line, Placements{Shard(1)}), std::pair(line, Placements{Shard(2)}),
        std::pair(grid, Placements{Shard(1), Shard(2)}), std::pair(grid, Placements{Shard(2), Shard(2)}),
        std::pair(grid, Placements{Shard(0), Shard(2)}), std::pair(grid, Placements{Replicate(), Shard(1)}),
        std::pair(line, Placements{StridedShard(2, 2)})}) {
    const auto run = [&, m = mesh, p = placements](const char* name, const auto& fn) {
      check_split(name, {3, 7, 9}, p, m, fn);
    };
    run("reflection_pad2d", [](const at::Tensor& t) { return at::reflection_pad2d(t, {3, 1, 2, 4}); });
    run("reflection_pad2d wide", [](const at::Tensor& t) { return at::reflection_pad2d(t, {8, 8, 6, 6}); });
    run("replication_pad2d", [](const at::Tensor& t) { return at::replication_pad2d(t, {3, 1, 2, 4}); });
    run("replication_pad2d wide", [](const at::Tensor& t) { return at::replication_pad2d(t, {11, 0, 0, 12}); });
  }
  check_split("reflection_pad1d", {2, 13}, {Shard(1)}, line, [](auto& t) { return at::reflection_pad1d(t, {5, 2}); });
  check_split("replication_pad1d", {2, 13}, {Shard(1)}, line, [](auto& t) { return at::replication_pad1d(t, {5, 2}); });
  const Placements volume = {Shard(1), Shard(3)};
  check_split("reflection_pad3d", {2, 5, 4, 7}, volume, grid, [](auto& t) {
    return at::reflection_pad3d(t, {2, 1, 3, 0, 1, 4});
  });
  check_split("replication_pad3d", {2, 5, 4, 7}, volume, grid, [](auto& t) {
    return at::replication_pad3d(t, {2, 1, 3, 0, 1, 4});
  });
}

at::Tensor pad_circular(const at::Tensor& t, const Ints& pad) { return call_op("aten::_pad_circular", {t, pad})[0]; }

TEST_CASE("halo: circular padding", "[ops][halo]") {
  check("circular", {{2, 1, 7}}, [](auto& t) { return Tensors{pad_circular(t[0], {3, 2})}; });
  check("circular whole", {{1, 2, 5}}, [](auto& t) { return Tensors{pad_circular(t[0], {5, 5})}; });
  const DeviceMesh grid(World::local(6), {2, 3}, {"y", "x"});
  const Placements tiles = {Shard(2), Shard(3)};
  check_split("two dims", {1, 2, 7, 9}, tiles, grid, [](auto& t) { return pad_circular(t, {4, 9, 1, 2}); });
  // The gradient of the gradient.
  const at::Tensor plain = at::randn({1, 2, 7, 9}, at::kDouble).requires_grad_();
  at::Tensor split = lay_out(plain, grid, tiles).requires_grad_();
  for (const at::Tensor& t : {plain, split}) {
    const at::Tensor y = pad_circular(t, {2, 1, 3, 0}).pow(3).sum();
    const at::Tensor g = torch::autograd::grad({y}, {t}, {}, true, /*create_graph=*/true)[0];
    g.square().sum().backward();
  }
  CHECK(difference(split.grad(), plain.grad()).value_or("") == "");
}

at::Tensor rolled_stencil(const at::Tensor& u) {
  return u.roll({1}, {0}) + u.roll({-1}, {0}) + u.roll({1}, {1}) + u.roll({-1}, {1}) - 4 * u;
}

TEST_CASE("halo: a stencil of rolls receives the edges of tiles, as computed", "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(16), {4, 4}, {"y", "x"});
  const at::Tensor u = meta_tensor(mesh, {16384, 16384}, {Shard(0), Shard(1)});
  at::Tensor next;
  const int64_t tile = 16384 / 4, width = 1;
  CHECK(traffic([&] { next = rolled_stencil(u); }) == Traffic{2, 2 * width * (tile + tile) * 4});
  CHECK(DTensor(next).placements() == Placements{Shard(0), Shard(1)});
  // Steps one after the other.
  CHECK(traffic([&] { next = rolled_stencil(rolled_stencil(next)); }) == Traffic{4, 4 * width * (tile + tile) * 4});
  CHECK(DTensor(next).placements() == Placements{Shard(0), Shard(1)});
  // By padding and two slices per neighbour, in any order, one exchange with corners. It is cached with a tile, within
  // 64 MiB.
  limit_remembered_bytes(mesh.world(), int64_t{128} << 20);
  const auto padded_stencil = [](const at::Tensor& v) {
    const at::Tensor p = at::constant_pad_nd(v, {1, 1, 1, 1});
    return p.slice(0, 2).slice(1, 1, -1) + p.slice(0, 0, -2).slice(1, 1, -1) + p.slice(1, 2).slice(0, 1, -1) +
           p.slice(1, 0, -2).slice(0, 1, -1) - 4 * v;
  };
  CHECK(traffic([&] { next = padded_stencil(u); }) == Traffic{1, (2 * width * (tile + tile) + 4) * 4});
  CHECK(DTensor(next).placements() == Placements{Shard(0), Shard(1)});
  // Both axes at once, corners included: one exchange.
  CHECK(traffic([&] { next = u.roll({3, 2}, {0, 1}); }) == Traffic{1, (3 * tile + 2 * tile - 3 * 2) * 4});
}

TEST_CASE("halo: a stencil on tiles equals the values of one device", "[ops][halo]") {
  const DeviceMesh mesh(World::local(16), {4, 4}, {"y", "x"});
  const at::Tensor plain = at::randn({64, 48}, at::kFloat).requires_grad_();
  at::Tensor tiles = distribute_tensor(plain.detach(), mesh, {Shard(0), Shard(1)}).requires_grad_();
  at::Tensor actual;
  CHECK(traffic([&] { actual = rolled_stencil(tiles); }) == Traffic{2, 2 * (16 + 12) * 4});
  const at::Tensor expected = rolled_stencil(plain);
  CHECK(difference(actual.detach(), expected.detach(), 1e-5) == std::nullopt);
  CHECK(DTensor(actual).placements() == Placements{Shard(0), Shard(1)});
  const at::Tensor seed = at::randn({64, 48}, at::kFloat);
  expected.backward(seed);
  const at::Tensor split_seed = distribute_tensor(seed, mesh, {Shard(0), Shard(1)});
  CHECK(traffic([&] { actual.backward(split_seed); }) == Traffic{2, 2 * (16 + 12) * 4});
  CHECK(difference(tiles.grad(), plain.grad(), 1e-5) == std::nullopt);
}

TEST_CASE("halo: cached margins serve shifts both ways, until a write", "[ops][halo]") {
  for (const auto& [sizes, placements] : std::vector<std::pair<Ints, Placements>>{
           {{23, 6}, {Shard(0), Replicate()}}, {{23, 6}, {Shard(0), Shard(0)}}, {{6, 24}, {Shard(1), Shard(0)}}}) {
    const DeviceMesh mesh(World::local(6), {3, 2}, {"y", "x"});
    const int64_t dim = placements[0].dim();
    CAPTURE(sizes, to_string(placements));
    const at::Tensor plain = at::randn(sizes, at::kDouble);
    const at::Tensor split = lay_out(plain, mesh, {Replicate(), Replicate()});
    const at::Tensor x = (redistribute(split, placements) * 2);  // its parts were never exposed
    const at::Tensor expected = plain * 2;
    const auto calls = [&](int64_t shift) {
      CommDebugMode comm;
      const at::Tensor actual = x.roll({shift}, {dim});
      const int64_t n = comm.total();
      CHECK(difference(actual, expected.roll({shift}, {dim})).value_or("") == "");
      return n;
    };
    CHECK(calls(2) == 1);
    CHECK(calls(-2) == 0);
    CHECK(calls(1) == 0);  // a shorter shift
    CHECK(calls(-1) == 0);
    CHECK(calls(-3) == 1);
    CHECK(calls(3) == 0);
    x.add_(1), expected.add_(1);
    CHECK(calls(1) == 1);
    CHECK(calls(-1) == 0);
    CHECK(difference((-x).roll({1}, {dim}), (-expected).roll({1}, {dim})).value_or("") == "");
  }
}

TEST_CASE("halo: a copied view's margins follow its base", "[ops][halo]") {
  const DeviceMesh mesh(World::local(3), {3}, {"x"});
  const at::Tensor plain = at::randn({14, 2}, at::kDouble) * 2;
  const at::Tensor base = redistribute(lay_out(plain / 2, mesh, {Replicate()}), {Shard(0)}) * 2;
  const at::Tensor x = base.slice(0, 1, 13), expected = plain.slice(0, 1, 13);
  CHECK(difference(x.roll({1}, {0}), expected.roll({1}, {0})).value_or("") == "");
  base.add_(1), plain.add_(1);
  CHECK(difference(x.roll({-1}, {0}), expected.roll({-1}, {0})).value_or("") == "");
}

// Parts of `sizes` in a layout chosen by the engine, so that they may be cached.
at::Tensor made(const at::Tensor& plain, const DeviceMesh& mesh, const Placements& placements) {
  const Placements whole(placements.size(), Replicate());
  return redistribute(lay_out(plain / 2, mesh, whole), placements) * 2;
}

int64_t calls_of(const std::function<at::Tensor()>& make, const at::Tensor& expected) {
  CommDebugMode comm;
  const at::Tensor actual = make() * 1;  // reads it
  const int64_t calls = comm.total();
  CHECK(difference(actual, expected).value_or("") == "");
  return calls;
}

TEST_CASE("halo: the first window of a padded tensor fetches all windows of the former size", "[ops][halo]") {
  using Pad = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<Pad> pads = {
      [](const at::Tensor& t) {
        return at::constant_pad_nd(t, {1, 1, 1, 1});
      },
      [](const at::Tensor& t) {
        return at::constant_pad_nd(t, {2, 0, 0, 3}, 1.5);
      },
      [](const at::Tensor& t) {
        return at::reflection_pad2d(t.unsqueeze(0), {1, 2, 2, 1}).squeeze(0);
      },
      [](const at::Tensor& t) {
        return at::replication_pad2d(t.unsqueeze(0), {2, 1, 1, 1}).squeeze(0);
      },
  };
  for (const auto& [sizes, shape, placements] :
       std::vector<std::tuple<Ints, Ints, Placements>>{{{24, 18}, {4, 3}, {Shard(0), Shard(1)}},
                                                       {{21, 19}, {3, 2}, {Shard(1), Shard(0)}},
                                                       {{30, 8}, {3, 2}, {Shard(0), Shard(0)}},
                                                       {{30, 8}, {4}, {Shard(0)}},
                                                       {{6, 33}, {5}, {Shard(1)}}}) {
    int64_t ranks = 1;
    for (const int64_t n : shape) ranks *= n;
    const DeviceMesh mesh(World::local(ranks), shape);
    const at::Tensor plain = at::randn(sizes, at::kDouble) * 2;
    const at::Tensor x = made(plain, mesh, placements);
    for (size_t k = 0; k < pads.size(); ++k) {
      CAPTURE(sizes, shape, to_string(placements), k);
      const at::Tensor expected = pads[k](plain);
      at::Tensor padded;
      CommDebugMode comm;
      padded = pads[k](x);
      CHECK(comm.total() == 0);
      int64_t for_windows = 0;
      for (int64_t i = 0; i + sizes[0] <= expected.size(0); ++i) {
        for (int64_t j = 0; j + sizes[1] <= expected.size(1); ++j) {
          const auto rows_first = [&, i = i, j = j, rows = sizes[0], columns = sizes[1]](const at::Tensor& t) {
            return t.slice(0, i, i + rows).slice(1, j, j + columns);
          };
          const auto columns_first = [&, i = i, j = j, rows = sizes[0], columns = sizes[1]](const at::Tensor& t) {
            return t.slice(1, j, j + columns).slice(0, i, i + rows);
          };
          for_windows += calls_of([&] { return rows_first(padded); }, rows_first(expected));
          for_windows += calls_of([&] { return columns_first(padded); }, columns_first(expected));
        }
      }
      if (k < 2) CHECK(for_windows == 1);
      CHECK(difference(padded, expected).value_or("") == "");
      // Other windows, other operators, and writes.
      calls_of([&] { return padded.slice(0, 1, 4); }, expected.slice(0, 1, 4));
      calls_of([&] { return padded.slice(1, 0, 7, 2); }, expected.slice(1, 0, 7, 2));
      const int64_t rows = sizes[0], columns = sizes[1];
      const at::Tensor window = padded.slice(0, 1, 1 + rows), of_plain = expected.slice(0, 1, 1 + rows);
      padded.add_(1), expected.add_(1);
      calls_of([&] { return window; }, of_plain);
      calls_of([&] { return window.slice(1, 1, 1 + columns); }, of_plain.slice(1, 1, 1 + columns));
      window.mul_(3), of_plain.mul_(3);
      calls_of([&] { return padded.slice(0, 0, rows); }, expected.slice(0, 0, rows));
      calls_of([&] { return window.slice(1, 0, columns); }, of_plain.slice(1, 0, columns));
      calls_of([&] { return padded; }, expected);
    }
  }
}

// Pads a tensor split along rows by a row at each end.
struct Padded {
  at::Tensor plain, x, expected, actual;
};
Padded pad_rows(const DeviceMesh& mesh) {
  const at::Tensor plain = at::randn({21, 3}, at::kDouble) * 2, x = made(plain, mesh, {Shard(0)});
  return {plain, x, at::constant_pad_nd(plain, {0, 0, 1, 1}), at::constant_pad_nd(x, {0, 0, 1, 1})};
}

TEST_CASE("halo: a padded tensor's parts are fetched on first read, with the values at padding time", "[ops][halo]") {
  const DeviceMesh mesh(World::local(4), {4}, {"x"});
  using Use = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<Use, int64_t>> uses = {
      {[](const at::Tensor& t) { return t * 2; }, 1},
      {[](const at::Tensor& t) { return t.t().detach(); }, 0},
      {[](const at::Tensor& t) { return t.slice(1, 0, 2).slice(0, 1, 22); }, 1},
      {[](const at::Tensor& t) { return t.slice(0, 0, 21).t().slice(0, 1, 2); }, 1},
      {[](const at::Tensor& t) {
         return t.select(1, 2).unsqueeze(0).expand({2, 23});
       },
       0},
      {[](const at::Tensor& t) {
         return t.view({23, 3, 1}) + 1;
       },
       1},
      {[](const at::Tensor& t) { return t.add_(5); }, 1},
      {[](const at::Tensor& t) { return t.t().narrow(0, 1, 1).mul_(3); }, 1},
      {[](const at::Tensor& t) { return t.slice(0, 1, 22).copy_(t.slice(0, 0, 21).clone()); }, 3},
      {[](const at::Tensor& t) { return t.slice(0, 2, 23).slice(1, 1, 3).slice(0, 4, 9); }, 2},
      {[](const at::Tensor& t) { return t.fill_(5); }, 1},
      {[](const at::Tensor& t) { return t.clone(); }, 1},
  };
  for (size_t k = 0; k < uses.size(); ++k) {
    CAPTURE(k);
    const auto [plain, x, expected, actual] = pad_rows(mesh);
    x.zero_();
    CommDebugMode comm;
    const at::Tensor used = uses[k].first(actual);
    CHECK(comm.total() <= uses[k].second);
    CHECK(difference(used, uses[k].first(expected)).value_or("") == "");
    CHECK(difference(actual, expected).value_or("") == "");
    const int64_t read = comm.total();
    CHECK(difference(actual.slice(0, 2), expected.slice(0, 2)).value_or("") == "");
    CHECK(read > 0);
  }
}

TEST_CASE("halo: padding followed by windows equals one device, forward and backward", "[ops][halo]") {
  const DeviceMesh mesh(World::local(3), {3}, {"x"});
  const auto smooth = [](const at::Tensor& t) {
    const at::Tensor p = at::constant_pad_nd(t, {1, 1, 2, 2});
    at::Tensor sum = (p * p).sum();
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t j = 0; j < 3; ++j) sum = sum + (p.narrow(1, j, 7).narrow(0, i, 26) * t).pow(2).sum() * (1 + i + j);
    return sum;
  };
  for (const Placement& placement : {Shard(0), Shard(1), Replicate()}) {
    const at::Tensor plain = at::randn({26, 7}, at::kDouble).requires_grad_();
    const at::Tensor x = distribute_tensor(plain.detach(), mesh, {placement}).requires_grad_();
    const at::Tensor expected = smooth(plain), actual = smooth(x);
    CHECK(difference(actual.detach(), expected.detach(), 1e-12).value_or("") == "");
    expected.backward(), actual.backward();
    CHECK(difference(x.grad(), plain.grad(), 1e-11).value_or("") == "");
  }
}

TEST_CASE("halo: padding keeps only the parts, and boxes after windows were read", "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"x"});
  const at::Tensor x = distribute_tensor(at::empty({4096, 8}, at::TensorOptions(at::kMeta)), mesh, {Shard(0)});
  MemoryMeter& memory = mesh.world().memory();
  const int64_t part = 1024 * 8 * 4, row = 8 * 4, before = memory.live_bytes();
  at::Tensor padded = at::constant_pad_nd(x, {0, 0, 1, 1});
  CHECK(memory.live_bytes() - before == part + (part + row));  // the padded tensor's input, and the parts
  const int64_t with_window = [&] {
    const at::Tensor window = padded.slice(0, 1, 4097);
    CHECK(memory.live_bytes() - before == part + (part + row) + part);  // not read yet
    window.exp();
    return memory.live_bytes() - before;
  }();
  CHECK(with_window == part + (part + row) + (part + 2 * row) + part);
  padded.add_(1);  // the boxes are outdated
  CHECK(memory.live_bytes() - before == part + row);
  padded.slice(0, 0, 4096).exp();
  padded = at::Tensor();
  CHECK(memory.live_bytes() == before);
}

TEST_CASE("halo: margins are not used for conjugated or negated views", "[ops][halo]") {
  const DeviceMesh mesh(World::local(3), {3}, {"x"});
  const at::Tensor plain = at::randn({12, 2}, at::kComplexDouble), x = lay_out(plain, mesh, {Shard(0)}) * 1;
  CHECK(difference(x.roll({1}, {0}), plain.roll({1}, {0})).value_or("") == "");
  CHECK(difference(x.conj().roll({-1}, {0}), plain.conj().roll({-1}, {0})).value_or("") == "");
  const at::Tensor imaginary = at::imag(x.conj());  // negated, lazily
  CHECK(difference(at::imag(x).roll({1}, {0}), at::imag(plain).roll({1}, {0})).value_or("") == "");
  CHECK(difference(imaginary.roll({-1}, {0}), at::imag(plain.conj()).roll({-1}, {0})).value_or("") == "");
  // Parts exposed to the user may be written to unseen.
  std::vector<at::Tensor> parts = {at::ones({4}), at::ones({4}) * 2, at::ones({4}) * 3};
  const at::Tensor given = from_local(parts, mesh, {Shard(0)});
  const at::Tensor right = given.roll({1}, {0});
  parts[0].fill_(7);
  CHECK(full_tensor(given.roll({-1}, {0}))[11].item<float>() == 7);
  const at::Tensor ones = at::ones({12}), made_here = lay_out(ones, mesh, {Shard(0)}) * 1;
  CHECK(difference(made_here.roll({1}, {0}), ones).value_or("") == "");
  mutable_local_tensors(made_here)[0].zero_();
  CHECK(full_tensor(made_here.roll({-1}, {0}))[11].item<float>() == 0);
  // A shift by more than the smallest part, and by most of the dim.
  const at::Tensor uneven = at::randn({7}, at::kDouble), y = lay_out(uneven, mesh, {Shard(0)}) * 1;  // 3, 3, 1
  for (const int64_t shift : {2, -2, 5, -6, 1, -1})
    CHECK(difference(y.roll({shift}, {0}), uneven.roll({shift}, {0})).value_or("") == "");
}

TEST_CASE("halo: decisions differ by scope, which errors of a frozen cache name", "[ops][halo]") {
  const DeviceMesh mesh(World::local(3), {3});
  const auto x = distribute_tensor(at::arange(12), mesh, {Shard(0)});
  const auto is_rolled = [&] { return at::equal(full_tensor(x.roll(1, 0)), at::arange(12).roll(1, 0)); };
  CHECK(is_rolled());
  StrategyCache& cache = strategy_cache(mesh.world());
  cache.freeze();
  CHECK(is_rolled());
  {
    const LossParallel scope;
    CHECK_THROWS_WITH(x.roll(1, 0), Catch::Contains("aten::roll(") && Catch::Contains(" in a LossParallel scope"));
  }
  {
    const RedistributeMemoryLimit limit(4096);
    CHECK_THROWS_WITH(x.roll(1, 0), Catch::Contains("aten::roll(") && Catch::Contains(" within 4096 bytes"));
    cache.freeze(false);
    CHECK(is_rolled());
  }
  cache.freeze();
  const RedistributeMemoryLimit same(4096);
  CHECK(is_rolled());
}

}  // namespace
}  // namespace dtensor::testing
