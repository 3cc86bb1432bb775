// Writing to views whose parts begin elsewhere than those of their bases: each rank receives just the elements that it
// stores.
#include <ATen/TensorIndexing.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/factories.h"
#include "dtensor/ghost_width.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/view_pairs.h"
#include "tests/testing/property.h"

namespace dtensor::testing {
namespace {

using at::indexing::Slice;
using Change = std::function<void(const Tensor&)>;

// The interior becomes the mean of its neighbours; the border stays.
void smooth(const Tensor& from, const Tensor& to) {
  Tensor sum;
  const std::vector<int64_t> middle(from.dim(), 1);
  for (size_t d = 0; d < middle.size(); ++d) {
    for (const int64_t start : {0, 2}) {
      auto starts = middle;
      starts[d] = start;
      const Tensor beside = window(from, starts);
      sum = sum.defined() ? sum + beside : beside;
    }
  }
  window(to, middle).copy_(sum / static_cast<double>(2 * from.dim()));
}

struct Moved {
  int64_t calls = 0, bytes = 0;
  friend bool operator==(const Moved&, const Moved&) = default;
};
std::ostream& operator<<(std::ostream& os, const Moved& m) { return os << m.calls << " calls, " << m.bytes << " B"; }

// Collectives and bytes of writes to views, as planned.
Moved moved_by(const CommDebugMode& comm, const std::string& op) {
  Moved moved;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op != op) continue;
    CHECK(e.collective == Collective::kAllToAll);
    CHECK((e.received_bytes == -1 || e.received_bytes == e.bytes));
    ++moved.calls;
    moved.bytes += e.bytes;
  }
  return moved;
}

// The parts of 62 rows begin a row later than those of 64.
TEST_CASE("view stores: an in-place stencil moves one row per border") {
  struct Row {
    std::vector<int64_t> mesh, sizes;
    Placements placements;
    Moved moved, both;  // the second if the ghost region is updated, too, as it was fetched before
  };
  const int64_t item = 8;
  for (const Row& row : std::vector<Row>{
           {{8}, {64, 16, 12}, {Shard(0)}, {1, 14 * 10 * item}, {1, 2 * 14 * 10 * item}},
           {{2, 2, 2}, {64, 16, 12}, {Shard(0), Shard(1), Shard(2)}, {0, 0}, {0, 0}},
           {{2, 2, 2}, {64, 16, 12}, {Shard(0), Shard(0), Shard(0)}, {1, 14 * 10 * item}, {1, 2 * 14 * 10 * item}},
           // A row and a column; or two each, and the corner.
           {{4, 4}, {64, 64}, {Shard(0), Shard(1)}, {1, (16 * 16 - 15 * 15) * item}, {1, (18 * 18 - 16 * 16) * item}},
           {{4, 4}, {64, 64}, {Replicate(), Shard(0)}, {1, 62 * item}, {1, 2 * 62 * item}},
       }) {
    CAPTURE(row.mesh, to_string(row.placements));
    int64_t n = 1;
    for (int64_t size : row.mesh) n *= size;
    for (const World& world : {World::abstract(n), World::local(n)}) {
      const DeviceMesh mesh(world, row.mesh);
      const FactoryOptions doubles{.dtype = torch::kDouble};
      Tensor u = zeros(row.sizes, mesh, row.placements, doubles), v = zeros(row.sizes, mesh, row.placements, doubles);
      for (const Tensor& t : {u, v}) set_ghost_width(t, std::vector<int64_t>(row.sizes.size(), 1));
      for (int round = 0; round < 4; ++round) {
        CommDebugMode comm;
        smooth(u, v);
        CHECK(moved_by(comm, "aten::copy_") == (round == 0 ? row.moved : row.both));
        std::swap(u, v);
      }
    }
  }
}

TEST_CASE("view stores: an in-place stencil computes the values of one device") {
  const std::vector<std::pair<DeviceMesh, Placements>> layouts = {
      {DeviceMesh(World::local(8), {8}), {Shard(0)}},
      {DeviceMesh(World::local(8), {2, 2, 2}), {Shard(0), Shard(1), Shard(2)}},
      {DeviceMesh(World::local(8), {2, 2, 2}), {Shard(2), Shard(0), Shard(0)}},
      {DeviceMesh(World::local(6), {2, 3}), {Replicate(), Shard(1)}},
      {DeviceMesh(World::local(6), {3, 2}), {StridedShard(0, 2), Shard(0)}},
  };
  for (const auto& [mesh, placements] : layouts) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{16, 8, 6}, {9, 7, 11}, {5, 3, 4}}) {
      CAPTURE(mesh.to_string(), to_string(placements), sizes);
      Pair u = make(sizes, mesh, placements);
      set_ghost_width(u.distributed, {1, 1, 1});
      Pair v = {u.plain.clone(), u.distributed.clone()};
      for (int round = 0; round < 3; ++round) {
        smooth(u.plain, v.plain);
        smooth(u.distributed, v.distributed);
        std::swap(u, v);
      }
      CHECK(same(u.distributed, u.plain));
      CHECK(same(v.distributed, v.plain));
    }
  }
}

TEST_CASE("view stores: assignments to slices do not gather") {
  const std::vector<std::pair<const char*, Change>> writes = {
      {"copy_", [](auto& x) { x.slice(0, 2, 12).copy_(x.slice(0, 0, 10) * 2); }},
      {"add_", [](auto& x) { x.narrow(0, 3, 8).add_(x.narrow(0, 5, 8).exp()); }},
      {"index_put_", [](auto& x) { Tensor(x).index_put_({Slice(1, -1)}, x.slice(0, 0, 11).cos()); }},
      {"steps", [](auto& x) { x.slice(0, 1, 13, 2).mul_(3); }},
      {"steps of steps", [](auto& x) { x.slice(0, 1, 13, 2).slice(0, 1, 6).mul_(3); }},
      {"a selected column", [](auto& x) { x.slice(0, 3).select(1, 1).mul_(3); }},
      {"a selected element of each row",
       [](auto& x) { x.slice(0, 1).slice(0, 0, 10).select(1, 0).slice(0, 1).mul_(3); }},
      {"transposed", [](auto& x) { x.t().slice(1, 1, 12).slice(0, 1).mul_(3); }},
  };
  for (const DeviceMesh& mesh : {mesh_of(3), DeviceMesh(World::local(6), {2, 3}, {"x", "y"})}) {
    for (const auto& [name, write] : writes) {
      INFO(name << " on " << mesh.to_string());
      Placements placements(mesh.ndim(), Replicate());
      placements.back() = Shard(0);
      Pair x = make({13, 2}, mesh, placements);
      write(x.plain);
      CommDebugMode comm;
      write(x.distributed);
      CHECK(comm.count(Collective::kAllGather) == 0);
      CHECK(same(x.distributed, x.plain));
    }
  }
}

// One mesh per row of a grid, each with a tensor of its own; some ranks of a world, in another order.
TEST_CASE("view stores: slices of meshes, and meshes of some ranks") {
  const DeviceMesh grid(World::local(6), {2, 3}, {"x", "y"});
  for (const DeviceMesh& mesh : {grid["y"], DeviceMesh(World::local(6), {3}, {"y"}, {4, 1, 3})}) {
    INFO(mesh.to_string());
    Pair x = make({13, 2}, mesh, {Shard(0)});
    CommDebugMode comm;
    for (const Tensor& t : {x.plain, x.distributed}) t.slice(0, 2, 12).mul_(3);
    CHECK(comm.counts() ==
          std::map<std::string, int64_t>{{"all_to_all", 2}});  // the slice, and the value written to it
    CHECK(same(x.distributed, x.plain));
  }
}

TEST_CASE("view stores: all bases in a chain have the written value, and are not read again") {
  const DeviceMesh mesh(World::local(16), {4, 4}, {"x", "y"});
  Pair x = make({18, 21}, mesh, {Shard(0), Shard(1)});
  const auto views = [](const Tensor& t) {
    const Tensor rows = t.narrow(0, 2, 15), tile = rows.narrow(1, 1, 18), inner = tile.narrow(0, 1, 13);
    return std::vector<Tensor>{rows, tile, inner};
  };
  const auto plain = views(x.plain), split = views(x.distributed);
  for (const Tensor& t : split) CHECK((t * 1).defined());  // reads it
  plain[2].mul_(2);
  CommDebugMode comm;
  split[2].mul_(2);
  CHECK(comm.total() == 1);
  for (size_t i = 0; i < plain.size(); ++i) {
    comm.reset();
    CHECK((split[i] * 1).defined());
    CHECK(comm.total() == 0);
    CHECK(same(split[i], plain[i]));
  }
  CHECK(same(x.distributed, x.plain));
}

TEST_CASE("view stores: the exchange stays within a limit that gathering exceeds") {
  const DeviceMesh mesh = mesh_of(4);
  Pair x = make({64, 64}, mesh, {Shard(0)});
  const Tensor plain = x.plain.slice(0, 1, 63), split = x.distributed.slice(0, 1, 63);
  plain.mul_(2);
  CHECK((split * 1).defined());  // reads it
  {
    const RedistributeMemoryLimit limit(17 * 64 * 8);
    split.mul_(2);
  }
  CHECK(same(x.distributed, x.plain));
  {
    const RedistributeMemoryLimit limit(16 * 64 * 8);
    CHECK_THROWS(split.mul_(2));
  }
  CHECK(same(x.distributed, x.plain));
  CHECK(same(split, plain));
}

TEST_CASE("view stores: gradients pass through a slice that was written to") {
  const DeviceMesh mesh = mesh_of(3);
  Pair x = make({13, 2}, mesh, {Shard(0)});
  std::vector<Tensor> grads;
  for (const Tensor& leaf : {x.plain, x.distributed}) {
    leaf.requires_grad_();
    const Tensor y = leaf * 1.5;
    y.slice(0, 2, 12).copy_(y.slice(0, 0, 10).clone().sin());
    y.slice(0, 1).mul_(2);
    y.square().sum().backward();
  }
  CHECK(same(x.distributed.grad(), x.plain.grad()));
}

TEST_CASE("view stores: random chains of slices of random layouts") {
  CHECK(holds("view stores", 300, [] {
    const auto& meshes = view_meshes();
    const DeviceMesh mesh = meshes[draw(0, static_cast<int64_t>(meshes.size()) - 1)];
    std::vector<int64_t> shape(draw(1, 3));
    for (auto& s : shape) s = draw(2, 14);
    const auto ndim = static_cast<int64_t>(shape.size());
    auto layout = layouts(mesh, ndim)[draw(0, static_cast<int64_t>(layouts(mesh, ndim).size()) - 1)];
    if (mesh.ndim() == 2 && layout[0].is_sharded() && layout[0] == layout[1] && draw(0, 1) == 1)
      layout[0] = StridedShard(layout[0].dim(), mesh.size(1));
    std::ostringstream program;
    program << "x of " << shape << " as " << to_string(layout) << " on " << mesh.to_string() << "\n";
    std::vector<Pair> chain = {make(shape, mesh, layout)};
    for (int64_t n = draw(1, 4); n > 0; --n) {
      const Pair last = chain.back();
      const int64_t d = draw(0, ndim - 1), size = last.plain.size(d);
      const int64_t from = draw(0, std::min<int64_t>(2, size)), to = draw(from, size), step = draw(1, 3);
      program << "slice " << d << " " << from << " " << to << " " << step << "\n";
      chain.push_back({last.plain.slice(d, from, to, step), last.distributed.slice(d, from, to, step)});
      if (draw(0, 4) == 0)
        chain.back() = {chain.back().plain.transpose(0, d), chain.back().distributed.transpose(0, d)};
    }
    RC_LOG(program.str());
    for (int64_t n = draw(1, 2); n > 0; --n) {
      const Pair& at = chain[draw(0, static_cast<int64_t>(chain.size()) - 1)];
      for (const Tensor& t : {at.plain, at.distributed}) t.copy_(t.cos() + 3);
    }
    for (const Pair& t : chain) RC_ASSERT(same(t.distributed, t.plain));
  }));
}

}  // namespace
}  // namespace dtensor::testing
