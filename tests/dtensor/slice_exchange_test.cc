// Slices of sharded dims: those within a declared ghost width are fetched together, writes update fetched ghost
// regions, and unread slices are not fetched. The declaration itself: ghost_width_test.cc.
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/ghost_width.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "plan/layout.h"
#include "tests/dtensor/view_pairs.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

using Grids = std::vector<Tensor>;

Tensor inside(const Tensor& t) { return window(t, std::vector<int64_t>(t.dim(), 1)); }

// The mean of the neighbours, for the interior.
Tensor around(const Tensor& t) {
  Tensor sum;
  for (int64_t d = 0; d < t.dim(); ++d) {
    for (const int64_t start : {0, 2}) {
      std::vector<int64_t> starts(t.dim(), 1);
      starts[d] = start;
      const Tensor beside = window(t, starts);
      sum = sum.defined() ? sum + beside : beside;
    }
  }
  return sum;
}

void heat(Grids& g) {
  const Tensor laplacian = around(g[0]) - 2.0 * static_cast<double>(g[0].dim()) * inside(g[0]);
  const Tensor next = g[0].clone();
  inside(next).add_(laplacian * 0.1);
  g[0] = next;
}
void in_place(Grids& g) { inside(g[0]).copy_(around(g[0]) / 4); }
void two_grids(Grids& g) {
  inside(g[1]).copy_(around(g[0]) / 4);
  std::swap(g[0], g[1]);
}
void along_one_dim(Grids& g) {
  const Tensor u = g[0];
  const int64_t n = u.size(0) - 2;
  g[1].narrow(0, 1, n).copy_((u.narrow(0, 0, n) + u.narrow(0, 2, n)) / 2);
  std::swap(g[0], g[1]);
}
void other_dim_first(Grids& g) {
  const auto part = [&](int64_t row, int64_t column) {
    return g[0].narrow(1, column, g[0].size(1) - 2).narrow(0, row, g[0].size(0) - 2);
  };
  part(1, 1).copy_((part(0, 1) + part(2, 1) + part(1, 0) + part(1, 2)) / 4);
}
void wave(Grids& g) {
  const Tensor u = g[0], old = g[1];
  inside(old).copy_(2 * inside(u) - inside(old) + 0.1 * around(u));
  std::swap(g[0], g[1]);
}
void red_and_black(Grids& g) {
  const Tensor& u = g[0];
  const auto part = [&](int64_t row, int64_t column) {
    const auto end = [&](int64_t d, int64_t begin) { return begin + (u.size(d) - 3) / 2 * 2; };
    return u.slice(0, row, end(0, row), 2).slice(1, column, end(1, column), 2);
  };
  for (const auto& [i, j] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 2}, {1, 2}, {2, 1}})
    part(i, j).copy_((part(i - 1, j) + part(i + 1, j) + part(i, j - 1) + part(i, j + 1)) / 4);
}
void fixed_border(Grids& g) {
  in_place(g);
  g[0].select(0, 0).fill_(1);
  g[0].select(0, -1).zero_();
}
void difference(Grids& g) {
  g[1].slice(0, 1, -1).copy_((g[0].slice(0, 2) - g[0].slice(0, 0, -2)) / 2);
  g[0].add_(g[1], 0.01);
}
// Views that are taken only once.
void kept_views(Grids& g) {
  const int64_t n = g[0].size(0) - 2;
  if (g.size() == 2) g.insert(g.end(), {g[0].narrow(0, 0, n), g[0].narrow(0, 2, n), g[0].narrow(0, 1, n)});
  g[4].copy_((g[2] + g[3]) / 2);
}

struct Form {
  const char* name;
  void (*step)(Grids&);
  int64_t rows, others;  // the ghost width along the first dim and along the others
  int64_t calls;         // per round at most, once all grids were written. Red and black: four writes, with their reads
};

TEST_CASE("slices: a stencil exchanges borders once per round with one device's values") {
  const std::vector<Form> forms = {{"heat", heat, 1, 1, 1},
                                   {"in place", in_place, 1, 1, 1},
                                   {"two grids", two_grids, 1, 1, 1},
                                   {"along one dim", along_one_dim, 1, 0, 1},
                                   {"other dim first", other_dim_first, 1, 1, 1},
                                   {"wave", wave, 1, 1, 1},
                                   {"red and black", red_and_black, 2, 2, 7},
                                   {"fixed border", fixed_border, 1, 1, 2},
                                   {"difference", difference, 1, 0, 2},
                                   {"kept views", kept_views, 1, 0, 1}};
  struct Layout {
    std::vector<int64_t> mesh, sizes;
    Placements placements;
  };
  for (const auto& [shape, sizes, placements] :
       std::vector<Layout>{{{4, 4}, {64, 64}, {Shard(0), Shard(1)}},
                           {{2, 2, 2}, {16, 16, 16}, {Shard(0), Shard(1), Shard(2)}},
                           {{2, 2, 2}, {26, 6, 22}, {Shard(2), Shard(0), Shard(2)}},
                           {{4}, {64, 16}, {Shard(0)}},
                           {{3}, {31, 16}, {Shard(0)}},
                           {{2, 3}, {29, 31}, {Shard(1), Shard(0)}},
                           {{2, 2}, {40, 6}, {Replicate(), Shard(0)}}}) {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    const DeviceMesh mesh(World::local(n), shape), twin(World::abstract(n), shape);
    for (const Form& form : forms) {
      CAPTURE(form.name, mesh.to_string(), to_string(placements));
      Grids plain, split, counted;
      for (int k = 0; k < 2; ++k) {
        plain.push_back(torch::randn(sizes, torch::kDouble));
        split.push_back(distribute_tensor(plain[k], mesh, placements));
        counted.push_back(zeros(sizes, twin, placements, {.dtype = torch::kDouble}));
        std::vector<int64_t> width(sizes.size(), form.others);
        width[0] = form.rows;
        for (const Tensor& t : {split[k], counted[k]}) set_ghost_width(t, width);
      }
      for (int round = 0; round < 7; ++round) {
        form.step(plain);
        CommDebugMode comm;
        form.step(split);
        const int64_t calls = comm.total(), bytes = comm.bytes();
        form.step(counted);
        CHECK(comm.total() == 2 * calls);  // the same without data
        CHECK(comm.bytes() == 2 * bytes);
        if (round > 4) CHECK(calls <= form.calls);
      }
      for (size_t k = 0; k < split.size(); ++k) CHECK(torch::equal(full_tensor(split[k]), plain[k]));
    }
  }
}

TEST_CASE("slices: the first round fetches the declared ghost region, and each write updates it") {
  const DeviceMesh mesh(World::abstract(16), {4, 4});
  Grids g = {zeros({64, 64}, mesh, {Shard(0), Shard(1)})};
  set_ghost_width(g[0], {1, 1});
  const int64_t borders = (18 * 18 - 16 * 16) * 4;
  CHECK(traffic([&] { heat(g); }) == Traffic{2, 2 * borders});
  for (int round = 0; round < 3; ++round) CHECK(traffic([&] { heat(g); }) == Traffic{1, borders});
  // In 3-D.
  const DeviceMesh cube(World::abstract(64), {4, 4, 4});
  Grids h = {zeros({64, 64, 64}, cube, {Shard(0), Shard(1), Shard(2)})};
  set_ghost_width(h[0], {1, 1, 1});
  const int64_t faces = (18 * 18 * 18 - 16 * 16 * 16) * 4;
  CHECK(traffic([&] { heat(h); }) == Traffic{2, 2 * faces});
  for (int round = 0; round < 3; ++round) CHECK(traffic([&] { heat(h); }) == Traffic{1, faces});
}

TEST_CASE("slices: windows that are only sliced or overwritten are not fetched") {
  for (const World& world : {World::local(4), World::abstract(4)}) {
    const DeviceMesh mesh(world, {4});
    const Tensor x = zeros({40, 5}, mesh, {Shard(0)});
    Tensor part;
    CHECK(traffic([&] { part = x.slice(0, 1, 39).slice(0, 1, -1); }) == Traffic{0, 0});
    CHECK(traffic([&] { part.fill_(3); }).calls == 1);  // the elements that ranks store
    CHECK(traffic([&] { part * 1; }) == Traffic{0, 0});
    CHECK(traffic([&] { x.select(0, 7).zero_(); }) == Traffic{0, 0});
    CHECK(traffic([&] { x.slice(0, 1, 39).add_(1); }).calls == 2);
  }
  Pair x = make({40, 5}, mesh_of(4), {Shard(0)});
  for (const Tensor& t : {x.plain, x.distributed}) {
    const Tensor rows = t.slice(0, 1, 39), some = rows.slice(0, 3, 30);
    some.fill_(3);
    rows.mul_(2);
    t.slice(0, 2, 12).select(1, 2).fill_(some.sum().item<double>());
  }
  CHECK(same(x.distributed, x.plain));
}

TEST_CASE("slices: without a ghost width, a slice fetches the elements that ranks lack of it and caches nothing") {
  const DeviceMesh mesh(World::abstract(4), {4});
  MemoryMeter& memory = mesh.world().memory();
  const auto read = [&] {
    const Tensor x = zeros({4096, 2048}, mesh, {Shard(0)});
    x.slice(0, 2).exp();
    return memory.live_bytes();
  };
  const int64_t before = memory.live_bytes();
  for (int k = 0; k < 3; ++k) CHECK(read() - before == 1024 * 2048 * 4);
  // Slices of one of several time steps: those of the others are not fetched.
  const Tensor steps = zeros({9, 400}, mesh, {Shard(1)});
  for (int64_t k = 0; k < 8; ++k) {
    const auto of_a_step = traffic([&] {
      const Tensor u = steps[k];
      steps[k + 1].narrow(0, 1, 398).copy_(u.narrow(0, 0, 398) + u.narrow(0, 2, 398));
    });
    CHECK(of_a_step.bytes <= 4 * 4);
  }
}

TEST_CASE("slices: exposed and written tensors are not cached") {
  Pair x = make({24, 3}, mesh_of(3), {Shard(0)});
  set_ghost_width(x.distributed, {1, 0});
  const auto read = [&] {
    const Tensor a = x.distributed.slice(0, 0, 22) + x.distributed.slice(0, 2) * x.distributed.slice(0, 1, 23);
    const Tensor b = x.plain.slice(0, 0, 22) + x.plain.slice(0, 2) * x.plain.slice(0, 1, 23);
    return same(a.clone(), b.clone());
  };
  for (int k = 0; k < 3; ++k) {
    CHECK(read());
    for (const Tensor& t : {x.plain, x.distributed}) t.mul_(2);
  }
  CHECK(read());
  mutable_local_tensors(x.distributed)[1].fill_(7);  // rows 8 to 15
  x.plain.narrow(0, 8, 8).fill_(7);
  CHECK(read());
  mutable_local_tensors(x.distributed)[2].fill_(5);
  x.plain.narrow(0, 16, 8).fill_(5);
  CHECK(read());
}

TEST_CASE("slices: gradients of stencils with a ghost width equal those on one device") {
  for (const Placements& placements : {Placements{Shard(0), Shard(1)}, Placements{Shard(1), Shard(0)}}) {
    const DeviceMesh mesh(World::local(6), {2, 3});
    for (int k = 0; k < 3; ++k) {
      Pair x = make({13, 15}, mesh, placements);
      for (const Tensor& leaf : {x.plain, x.distributed}) {
        leaf.requires_grad_();
        Tensor u = leaf * 0.1;
        if (is_dtensor(u)) set_ghost_width(u, {1, 1});
        for (int round = 0; round < 3; ++round) {
          const Tensor next = u.clone();
          inside(next).add_((around(u) * inside(u)).sin());
          u = next;
        }
        u.square().sum().backward();
      }
      CHECK(same(x.distributed.grad(), x.plain.grad()));
    }
  }
}

TEST_CASE("slices: random programs that slice, write, clone and declare ghost widths match one device") {
  std::mt19937 random(5);
  const auto draw = [&](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from + 1));
  };
  const std::vector<int64_t> shape = {13, 9};
  for (int program = 0; program < 400; ++program) {
    const DeviceMesh& mesh = view_meshes()[draw(0, static_cast<int64_t>(view_meshes().size()) - 1)];
    const auto all = layouts(mesh, 2);
    const auto& placements = all[draw(0, static_cast<int64_t>(all.size()) - 1)];
    std::ostringstream text;
    text << to_string(placements) << " on " << mesh.to_string() << "\n";
    std::vector<Pair> tensors = {make(shape, mesh, placements), make(shape, mesh, placements)};
    for (int step = 0; step < 12; ++step) {
      const Pair from = tensors[draw(0, static_cast<int64_t>(tensors.size()) - 1)];
      const int64_t what = draw(0, 6);
      if (what < 3) {
        const int64_t d = draw(0, 1), n = from.plain.size(d), begin = draw(0, std::min<int64_t>(2, n));
        const int64_t end = draw(std::max(begin, n - 2), n), by = draw(0, 3) == 0 ? 2 : 1;
        text << "slice " << d << " " << begin << " " << end << " " << by << "\n";
        tensors.push_back({from.plain.slice(d, begin, end, by), from.distributed.slice(d, begin, end, by)});
      } else if (what == 3) {
        text << "write\n";
        for (const Tensor& t : {from.plain, from.distributed}) t.copy_(t.cos() + 3);
      } else if (what == 4) {
        text << "fill\n";
        for (const Tensor& t : {from.plain, from.distributed}) t.fill_(step);
      } else if (what == 5) {
        std::vector<int64_t> width;
        for (const int64_t n : from.plain.sizes()) width.push_back(draw(0, std::clamp<int64_t>((n - 1) / 2, 0, 2)));
        text << "width " << width << "\n";
        set_ghost_width(from.distributed, width);
      } else {
        text << "clone\n";
        tensors.push_back({from.plain.clone(), from.distributed.clone()});
      }
    }
    CAPTURE(text.str());
    for (const Pair& t : tensors) CHECK(same(t.distributed, t.plain));
  }
}

}  // namespace
}  // namespace dtensor::testing
