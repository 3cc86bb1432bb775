// Histograms: each rank counts its own elements.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/histogram.h>
#include <ATen/ops/histogramdd.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;

// One dim of edges ascends.
at::Tensor make_values(size_t, const std::vector<int64_t>& shape) {
  return shape == std::vector<int64_t>{4} ? at::tensor(std::vector<double>{0, 0.2, 0.7, 1})
                                          : at::rand(shape, at::kDouble);
}

void check(const std::string& name, const std::vector<std::vector<int64_t>>& shapes,
           const std::function<Tensors(const Tensors&)>& fn, bool silent = false) {
  OpCase c{name, fn, shapes, make_values};
  c.grad.assign(shapes.size(), false);
  if (silent) c.silent = [](const std::vector<Placement>& p) { return !p[0].is_partial() && p.size() == 1; };
  check_op(c, 30);
}

Tensors pair(const std::tuple<at::Tensor, at::Tensor>& t) { return {std::get<0>(t), std::get<1>(t)}; }
Tensors all(const std::tuple<at::Tensor, Tensors>& t) {
  Tensors result = std::get<1>(t);
  result.insert(result.begin(), std::get<0>(t));
  return result;
}

TEST_CASE("Histograms of one coordinate", "[ops][histogram]") {
  const std::vector<double> range = {0.1, 0.9};
  for (const bool density : {false, true}) {
    check(
        "range", {{5, 3}}, [=](auto& t) { return pair(at::histogram(t[0], 4, range, {}, density)); }, !density);
    check("range of the data", {{5, 3}}, [=](auto& t) { return pair(at::histogram(t[0], 4, {}, {}, density)); });
    check("weights", {{5, 3}, {5, 3}}, [=](auto& t) { return pair(at::histogram(t[0], 3, range, t[1], density)); });
    check("edges", {{5, 3}, {4}}, [=](auto& t) { return pair(at::histogram(t[0], t[1], {}, density)); });
    check("edges and weights", {{5}, {4}, {5}},
          [=](auto& t) { return pair(at::histogram(t[0], t[1], t[2], density)); });
  }
  check("fewer elements than ranks", {{2}}, [](auto& t) { return pair(at::histogram(t[0], 3)); });
  check("one element", {{}}, [](auto& t) { return pair(at::histogram(t[0], 3)); });
}

TEST_CASE("Histograms of many coordinates", "[ops][histogram]") {
  const std::vector<double> range = {0.1, 0.9, 0, 1};
  const std::vector<int64_t> bins = {3, 2};
  for (const bool density : {false, true}) {
    check("range", {{5, 2}}, [=](auto& t) { return all(at::histogramdd(t[0], bins, range, {}, density)); });
    check("range of the data", {{5, 3, 2}}, [=](auto& t) { return all(at::histogramdd(t[0], bins, {}, {}, density)); });
    check("weights", {{5, 2}, {5}}, [=](auto& t) { return all(at::histogramdd(t[0], bins, {}, t[1], density)); });
    check("edges", {{5, 2}, {4}}, [=](auto& t) {
      return all(at::histogramdd(t[0], at::TensorList({t[1], t[1]}), {}, {}, density));
    });
  }
}

TEST_CASE("Histograms: counts are Partial, edges are replicated", "[ops][histogram]") {
  const auto x = lay_out(at::rand({8, 3}, at::kDouble), test_meshes()[0], {Shard(0)});
  CommDebugMode comm;
  const auto [counts, edges] = at::histogram(x, 4, std::vector<double>{0, 1});
  CHECK(comm.total() == 0);
  CHECK(spec_of(counts)->placements()[0] == Partial());
  CHECK(spec_of(edges)->placements()[0] == Replicate());
  CHECK_THROWS_WITH(at::histogram(x, 0), Catch::Contains("bins must be > 0"));
}

TEST_CASE("Histograms: the range of the data is one exchange of two numbers per rank and coordinate",
          "[ops][histogram]") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"});
  const at::Tensor whole = at::rand({20, 6}, at::kDouble), ids = at::randint(3, 9, {40}, at::kLong);
  const auto exchanges = [](const auto& f, int64_t calls, int64_t bytes) {
    CommDebugMode comm;
    f();
    CHECK(comm.total() == calls);
    CHECK(comm.bytes() <= bytes);
  };
  for (const Placements& placements : {Placements{Shard(0), Replicate()}, Placements{Shard(0), Shard(0)}}) {
    CAPTURE(to_string(placements));
    const at::Tensor x = lay_out(whole, mesh, placements);
    exchanges([&] { at::histogram(x, 4); }, 1, 5 * 16);
    exchanges([&] { at::histc(x, 4); }, 1, 5 * 16);
    exchanges([&] { at::histogramdd(x, std::vector<int64_t>(6, 2)); }, 2, 2 * 5 * 6 * 16);  // edges, then counts
    exchanges([&] { at::bincount(lay_out(ids, mesh, placements)); }, 1, 5 * 16);
    CHECK(difference(at::histc(x, 4), at::histc(whole, 4)) == std::nullopt);
    CHECK(difference(at::bincount(lay_out(ids, mesh, placements)), at::bincount(ids)) == std::nullopt);
  }
  // Columns that are split, too, are gathered.
  const at::Tensor tiles = lay_out(whole, mesh, {Shard(0), Shard(1)});
  exchanges([&] { at::histc(tiles, 4); }, 1, 5 * 16);
  CHECK(difference(at::histc(tiles, 4), at::histc(whole, 4)) == std::nullopt);
  // Partials are reduced once, for the range and the counts.
  const at::Tensor addends = lay_out(whole, mesh, {Partial(), Shard(0)});
  exchanges([&] { at::histc(addends, 4); }, 2, 20 * 6 * 8);
  CHECK(difference(at::histc(addends, 4), at::histc(whole, 4)) == std::nullopt);
  at::Tensor with_nan = whole.clone();
  with_nan[7][2] = std::nan("");
  CHECK_THROWS_WITH(at::histc(lay_out(with_nan, mesh, {Shard(0), Shard(1)}), 4), Catch::Contains("is not finite"));
}

}  // namespace
}  // namespace dtensor::testing
