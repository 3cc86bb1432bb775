// Operators that take nothing of a split dim, or all of it, or that run where one rank has all: the values of plain
// ATen, and no communication, in backward either.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/narrow_copy.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/slice_copy.h>
#include <ATen/ops/slice_scatter.h>
#include <ATen/ops/take_along_dim.h>
#include <ATen/ops/unfold_copy.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "tests/ops/silent_compare.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

using at::Tensor;
using Ints = std::vector<int64_t>;

// Of a dim of 12, or less.
std::vector<MeshLayout> split_layouts() {
  return {{{4}, {Shard(0)}},
          {{5}, {Shard(0)}},  // uneven; one rank has no row
          {{2, 2}, {Shard(0), Shard(0)}},
          {{2, 2}, {StridedShard(0, 2), Shard(0)}},
          {{3}, {StridedShard(0, 2)}},
          {{2, 2}, {Shard(0), Shard(1)}}};
}

// Where all ranks that share the rows are one.
std::vector<MeshLayout> layouts_on_one_rank() {
  return {{{1}, {Shard(0)}}, {{1}, {StridedShard(0, 3)}}, {{1, 3}, {Shard(0), Shard(1)}}};
}

struct SilentCase {
  const char* name;
  OneToOne fn;
  Ints sizes = {12, 5};
  bool keeps = false;  // the layout
};

// Replicated indices, all 0, next to `t`.
Tensor zeros_as_indices(const Tensor& t, const Ints& sizes) {
  const Tensor plain = at::zeros(sizes, at::kLong);
  return is_dtensor(t) ? distribute_tensor(plain, DTensor(t).mesh(), {}, std::nullopt) : plain;
}

std::vector<SilentCase> silent_cases() {
  const Ints one = {1, 5};
  using T = const Tensor&;
  return {
      {"x[:0]", [](T x) { return x.slice(0, 0, 0); }, {12, 5}, true},
      {"x[5:5]", [](T x) { return x.slice(0, 5, 5); }, {12, 5}, true},
      {"x[7:2]", [](T x) { return x.slice(0, 7, 2); }, {12, 5}, true},
      {"x[-3:2]", [](T x) { return x.slice(0, -3, 2); }, {12, 5}, true},
      {"x[12::2]", [](T x) { return x.slice(0, 12, 100, 2); }, {12, 5}, true},
      {"x[:-50]", [](T x) { return x.slice(0, 0, -50); }, {12, 5}, true},
      {"x[-20:20]", [](T x) { return x.slice(0, -20, 20); }, {12, 5}, true},
      {"x[::2] of one", [](T x) { return x.slice(0, -3, 9, 2); }, one, true},
      {"slice_copy of nothing", [](T x) { return at::slice_copy(x, 0, -3, 3); }, {12, 5}, true},
      {"narrow of nothing", [](T x) { return x.narrow(0, 4, 0); }, {12, 5}, true},
      {"narrow_copy of nothing", [](T x) { return at::narrow_copy(x, 0, 7, 0); }, {12, 5}, true},
      {"narrow_copy of all", [](T x) { return at::narrow_copy(x, 0, 0, 12); }, {12, 5}, true},
      {"split: nothing",
       [](T x) {
         return x.split_with_sizes({0, 12}, 0)[0];
       },
       {12, 5},
       true},
      {"split: all",
       [](T x) {
         return x.split_with_sizes({0, 12, 0}, 0)[1];
       },
       {12, 5},
       true},
      {"split into one", [](T x) { return x.split(20, 0)[0]; }, {12, 5}, true},
      {"split of nothing", [](T x) { return x.split(3, 0)[0]; }, {0, 5}, true},
      {"tensor_split",
       [](T x) {
         return x.tensor_split({0, 12}, 0)[1];
       },
       {12, 5},
       true},
      {"slice_scatter of nothing", [](T x) { return at::slice_scatter(x, x.slice(0, 0, 0), 0, -4, 4); }, {12, 5}, true},
      {"slice_scatter of all", [](T x) { return at::slice_scatter(x, x.sin(), 0, -12, 12); }, {12, 5}, true},
      {"index_select", [](T x) { return x.index_select(0, zeros_as_indices(x, {0})); }},
      {"index_select of bools", [](T x) { return x.gt(0).index_select(0, zeros_as_indices(x, {0})); }},
      {"gather",
       [](T x) {
         return x.gather(0, zeros_as_indices(x, {0, 5}));
       }},
      {"gather of bools",
       [](T x) {
         return x.gt(0).gather(0, zeros_as_indices(x, {0, 5}));
       }},
      {"take_along_dim",
       [](T x) {
         return at::take_along_dim(x, zeros_as_indices(x, {0, 5}), 0);
       }},
      {"take", [](T x) { return x.take(zeros_as_indices(x, {0})); }},
      {"x[[]]", [](T x) { return x.index({zeros_as_indices(x, {0})}); }},
      {"x[[]] of bools", [](T x) { return x.gt(0).index({zeros_as_indices(x, {0})}); }},
      {"index_add", [](T x) { return x.index_add(0, zeros_as_indices(x, {0}), x.slice(0, 0, 0)); }, {12, 5}, true},
      {"index_put", [](T x) { return x.index_put({zeros_as_indices(x, {0})}, x.slice(0, 0, 0)); }, {12, 5}, true},
      {"put", [](T x) { return x.put(zeros_as_indices(x, {0}), x.slice(0, 0, 0).reshape({0})); }, {12, 5}, true},
      {"unfold to windows of nothing", [](T x) { return x.unfold(0, 0, 1); }},
      {"unfold to one window", [](T x) { return x.unfold(0, 12, 2); }},
      {"unfold to windows of one", [](T x) { return x.unfold(0, 1, 1); }, {12, 5}, true},
      {"unfold_copy to one window", [](T x) { return at::unfold_copy(x, 0, 12, 20); }},
      {"unfold_copy to windows of one", [](T x) { return at::unfold_copy(x, -2, 1, 1); }, {12, 5}, true},
      {"crop of all",
       [](T x) {
         return at::constant_pad_nd(x, {0, 0, -5, -7}, 2);
       },
       {12, 5},
       true},
      {"padding by nothing",
       [](T x) {
         return at::constant_pad_nd(x, {0, 0, 0, 0}, 2);
       },
       {12, 5},
       true},
      {"roll by twice the size", [](T x) { return x.roll(24, 0); }, {12, 5}, true},
      {"roll there and back",
       [](T x) {
         return x.roll({3, -3}, {0, 0});
       },
       {12, 5},
       true},
      {"roll as a list", [](T x) { return x.roll(-60); }, {12, 5}, true},
      {"flip of one", [](T x) { return x.flip(0); }, one, true},
      {"expand",
       [](T x) {
         return x.expand({2, 12, 5});
       }},
      {"expand to nothing",
       [](T x) {
         return x.expand({0, 5});
       },
       one, true},
      {"a row times no rows", [](T x) { return x.mul(x.slice(0, 0, 0)); }, one, true},
      {"sum of nothing", [](T x) { return x.slice(0, 4, 4).sum(0); }},
      {"sum of rows without columns", [](T x) { return x.slice(1, 2, 2).sum(); }},
      {"norm of rows without columns", [](T x) { return x.slice(1, 2, 2).norm(2, 0); }},
      {"mean of nothing", [](T x) { return x.slice(0, 4, 4).mean(0).isnan(); }},
      {"repeat",
       [](T x) {
         return x.repeat({1, 1});
       },
       {12, 5},
       true},
      {"repeat by 0",
       [](T x) {
         return x.repeat({0, 1});
       },
       {12, 5},
       true},
      {"cat with nothing",
       [](T x) {
         return at::cat({x.slice(0, 0, 0), x, x.slice(0, 3, 3)});
       },
       {12, 5},
       true},
      {"cat of nothing",
       [](T x) {
         return at::cat({x.slice(0, 0, 0), x.slice(0, 0, 0)});
       },
       {12, 5},
       true},
      {"diagonal beyond the columns", [](T x) { return x.diagonal(5); }},
      {"diagonal beyond the rows", [](T x) { return x.diagonal(-12); }},
      {"triu", [](T x) { return x.slice(0, 0, 0).triu(2); }},
      {"row of no columns", [](T x) { return x.select(0, 3); }, {12, 0}},
  };
}

TEST_CASE("nothing moves where an operator takes nothing of a split dim, or all of it", "[ops][halo]") {
  for (const SilentCase& c : silent_cases()) {
    CAPTURE(c.name);
    for (const MeshLayout& layout : split_layouts()) compare_silently(c.fn, layout, c.sizes, c.keeps);
  }
}

TEST_CASE("nothing moves, and the layout stays, where one rank has all of a dim", "[ops][halo]") {
  using T = const Tensor&;
  const std::vector<SilentCase> more = {
      {"slice", [](T x) { return x.slice(0, -9, 7, 2); }, {12, 5}, true},
      {"narrow", [](T x) { return x.narrow(0, 2, 3); }, {12, 5}, true},
      {"narrow_copy", [](T x) { return at::narrow_copy(x, 0, 2, 6); }, {12, 5}, true},
      {"split",
       [](T x) {
         return x.split_with_sizes({3, 9}, 0)[1];
       },
       {12, 5},
       true},
      {"slice_scatter", [](T x) { return at::slice_scatter(x, x.slice(0, 0, 3), 0, 2, 8, 2); }, {12, 5}, true},
      {"unfold", [](T x) { return x.unfold(0, 3, 2); }, {12, 5}, true},
      {"padding",
       [](T x) {
         return at::constant_pad_nd(x, {0, 0, 1, 2}, 2);
       },
       {12, 5},
       true},
      {"roll", [](T x) { return x.roll(5, 0); }, {12, 5}, true},
      {"flip", [](T x) { return x.flip(0); }, {12, 5}, true},
      {"cat",
       [](T x) {
         return at::cat({x, x.slice(0, 3, 7)});
       },
       {12, 5},
       true},
      {"select", [](T x) { return x.select(0, 3); }},
      {"unbind", [](T x) { return x.unbind(0)[3]; }},
  };
  for (const auto& list : {silent_cases(), more}) {
    for (const SilentCase& c : list) {
      CAPTURE(c.name);
      for (const MeshLayout& layout : layouts_on_one_rank()) compare_silently(c.fn, layout, c.sizes, c.keeps);
    }
  }
}

TEST_CASE("nothing moves: writes to views of nothing or all, and Partials without elements", "[ops][halo]") {
  for (const MeshLayout& layout : split_layouts()) {
    const DeviceMesh mesh = layout.make_mesh();
    CAPTURE(mesh.to_string(), to_string(layout.placements));
    const Tensor plain = at::randn({12, 5}, at::kDouble), x = distribute_tensor(plain, mesh, layout.placements);
    CHECK(traffic([&] {
            x.slice(0, -3, 2).fill_(7);
            x.diagonal(5).zero_();
            x.unfold(0, 0, 1).zero_();
            x.split_with_sizes({0, 12}, 0)[0].add_(1);
          }) == Traffic{0, 0});
    CHECK(difference(x, plain).value_or("") == "");
    for (const Tensor& t : {plain, x}) {
      CHECK(traffic([&] {
              t.unfold(0, 12, 1).add_(1);
              t.unfold(0, 1, 1).mul_(2);
            }) == Traffic{0, 0});
    }
    CHECK(difference(x, plain).value_or("") == "");
  }
  // A fill that fills no place leaves addends as they are.
  const Tensor addends = lay_out(at::randn({12, 5}, at::kDouble), DeviceMesh(World::local(2), {2}), {Partial()});
  for (const Ints& pad : {Ints{}, Ints{0, 0, 0, 0}, Ints{-1, 0, 0, -2}}) {
    Tensor same;
    CHECK(traffic([&] { same = at::constant_pad_nd(addends, pad, 2); }) == Traffic{0, 0});
    CHECK(DTensor(same).placements() == Placements{Partial()});
  }
  // A gradient without elements is not added up, nor is what it becomes.
  const DeviceMesh mesh(World::local(4), {4});
  const Tensor x = distribute_tensor(at::randn({12, 5}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
  const Tensor y = x.slice(0, 4, 4), seed = lay_out(at::zeros({0, 5}, at::kDouble), mesh, {Partial()});
  CHECK(traffic([&] { y.backward(seed); }) == Traffic{0, 0});
  CHECK(difference(x.grad(), at::zeros({12, 5}, at::kDouble)).value_or("") == "");
}

TEST_CASE("nothing moves: diagonals and windows of a tensor without elements, whichever dim is sharded",
          "[ops][halo]") {
  for (const Ints& sizes : {Ints{0, 4, 4}, Ints{4, 4, 0}, Ints{3, 0, 5}}) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      CAPTURE(sizes, dim);
      const MeshLayout layout{{2}, {Shard(dim)}};
      compare_silently([](const Tensor& x) { return x.diagonal(0, 1, 2); }, layout, sizes, false);
      compare_silently([](const Tensor& x) { return x.diagonal(1, 0, 1); }, layout, sizes, false);
      compare_silently([](const Tensor& x) { return x.unfold(2, 0, 1); }, layout, sizes, false);
    }
  }
}

TEST_CASE("a roll that moves nothing has the strides of a roll", "[ops][halo]") {
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor plain = at::randn({12, 5}, at::kDouble), x = distribute_tensor(plain, mesh, {Shard(0)});
  const std::vector<OneToOne> rolls = {[](const Tensor& t) { return t.t().roll(-60); },
                                       [](const Tensor& t) { return t.t().roll(24, 1); },
                                       [](const Tensor& t) {
                                         return t.t().roll({3, -3}, {1, 1});
                                       },
                                       [](const Tensor& t) { return t.roll(60); }};
  for (const OneToOne& roll : rolls) {
    const Tensor expected = roll(plain), y = roll(x);
    CHECK(y.strides() == expected.strides());
    CHECK(difference(y, expected).value_or("") == "");
  }
}

TEST_CASE("a Partial without elements is written to in place", "[ops][halo]") {
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor empty = at::zeros({0, 5}, at::kDouble);
  Tensor t = from_local({empty, empty}, mesh, {Partial()});
  CHECK(traffic([&] { t.tril_(); }) == Traffic{0, 0});
  CHECK(DTensor(t).placements() == Placements{Partial()});
}

TEST_CASE("nothing moves, but the index of no elements needs its dtype", "[ops][halo]") {
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor plain = at::randn({12, 5}, at::kDouble), x = distribute_tensor(plain, mesh, {Shard(0)});
  const Tensor none = at::zeros({0}, at::kDouble), none_here = distribute_tensor(none, mesh);
  CHECK_THROWS_AS(plain.index_select(0, none), c10::Error);
  CHECK_THROWS_AS(x.index_select(0, none_here), c10::Error);
  CHECK_THROWS_AS(plain.take(none), c10::Error);
  CHECK_THROWS_AS(x.take(none_here), c10::Error);
  CHECK_THROWS_AS(plain.index({none}), c10::Error);
  CHECK_THROWS_AS(x.index({none_here}), c10::Error);
}

}  // namespace
}  // namespace dtensor::testing
