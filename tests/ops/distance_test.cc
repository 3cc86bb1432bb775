// Distances, products of three tensors, counts in bins, and losses of rows: split dims stay split.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_weight_norm.h>
#include <ATen/ops/bilinear.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/multi_margin_loss.h>
#include <ATen/ops/multilabel_margin_loss.h>
#include <ATen/ops/pdist.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/renorm.h>
#include <ATen/ops/trace.h>
#include <ATen/ops/zeros.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;

TEST_CASE("distances keep rows and batches split", "[ops][distance]") {
  for (const double p : {1., 2., 3.}) {
    OpCase c{"cdist", [p](auto& t) { return Tensors{at::cdist(t[0], t[1], p)}; }, {{3, 7, 4}, {3, 5, 4}}};
    c.tolerance = 1e-6;  // squares of differences, as a product of matrices
    c.silent = [](const std::vector<Placement>& q) {
      return (q[0] == Shard(0) && q[1] == Shard(0)) || (q[0] == Shard(1) && q[1] == Replicate()) ||
             (q[0] == Replicate() && q[1] == Shard(1));
    };
    check_op(c, 20);
  }
  check_op({"cdist, many rows",
            [](auto& t) { return Tensors{at::cdist(t[0], t[1], 2, 1)}; },
            {{27, 2}, {26, 2}},
            {},
            {},
            true,
            1e-5},
           20);
  check_op({"pdist", [](auto& t) { return Tensors{at::pdist(t[0], 2)}; }, {{5, 3}}});
}

TEST_CASE("norms of slices", "[ops][distance]") {
  OpCase c{"renorm", [](auto& t) { return Tensors{at::renorm(t[0], 2, 1, 0.5)}; }, {{3, 5, 2}}};
  c.silent = [](const std::vector<Placement>& p) { return p[0] == Shard(1) || p[0] == Replicate(); };
  check_op(c);
  c = {"weight norm", [](auto& t) { return Tensors{at::_weight_norm(t[0], t[1], 0)}; }, {{5, 3, 2}, {5, 1, 1}}};
  c.silent = [](const std::vector<Placement>& p) { return p[0] == p[1] && (p[0] == Shard(0) || p[0] == Replicate()); };
  check_op(c);
  check_op({"weight norm of the last dim",
            [](auto& t) { return Tensors{at::_weight_norm(t[0], t[1], 1)}; },
            {{3, 5}, {1, 5}}});
}

TEST_CASE("bilinear", "[ops][trilinear]") {
  OpCase c{"bilinear",
           [](auto& t) { return Tensors{at::bilinear(t[0], t[1], t[2], t[3])}; },
           {{5, 3}, {5, 2}, {4, 3, 2}, {4}}};
  c.partial_inputs = false;
  c.silent = [](const std::vector<Placement>& p) {
    const bool rows = p[0] == Shard(0) && p[1] == Shard(0) && p[2] == Replicate() && p[3] == Replicate();
    const bool features = p[0] == Replicate() && p[1] == Replicate() && p[2] == Shard(0) && p[3] == Shard(0);
    return rows || features;
  };
  check_op(c, 20);
}

TEST_CASE("trace of a split matrix is Partial", "[ops][counting]") {
  OpCase c{"trace", [](auto& t) { return Tensors{at::trace(t[0])}; }, {{5, 7}}};
  c.silent = [](const std::vector<Placement>&) { return true; };
  check_op(c);
  c.name = "tall", c.shapes = {{9, 2}};
  check_op(c);
}

TEST_CASE("counts in bins are Partial", "[ops][counting]") {
  OpCase c{"histc", [](auto& t) { return Tensors{at::histc(t[0], 5, -0.5, 0.7)}; }, {{5, 7}}};
  c.silent = [](const std::vector<Placement>& p) { return !p[0].is_partial(); };
  c.grad = {false};
  c.strided_inputs = true;
  check_op(c);
  c.name = "of the elements' own range", c.silent = {};
  c.fn = [](auto& t) { return Tensors{at::histc(t[0], 5)}; };
  check_op(c);
  c.name = "of one element", c.shapes = {{1}};
  check_op(c);
  OpCase counts{"bincount",
                [](auto& t) {
                  return Tensors{at::bincount(t[0], t[1], 2), at::bincount(t[0], {}, 9)};
                },
                {{11}, {11}}};
  counts.make = [](size_t i, const auto& shape) {
    return i == 0 ? at::randint(0, 6, shape, at::TensorOptions(at::kLong)) : at::rand(shape, at::kDouble);
  };
  counts.grad = {false, false};
  check_op(counts);
  counts.name = "few elements", counts.shapes = {{2}, {2}};
  check_op(counts);
  const auto& mesh = test_meshes()[0];
  at::Tensor odd = at::zeros({8}, at::kLong);
  odd[7] = -1;  // on the last rank
  CHECK_THROWS_WITH(at::bincount(distribute_tensor(odd, mesh, {Shard(0)})), Catch::Contains("non-negative"));
}

TEST_CASE("isin with a replicated set", "[ops][counting]") {
  OpCase c{"isin",
           [](auto& t) {
             return Tensors{at::isin(t[0], t[1]), at::isin(t[0], 3), at::isin(2, t[1])};
           },
           {{5, 3}, {4}}};
  c.make = [](size_t, const auto& shape) { return at::randint(0, 6, shape, at::TensorOptions(at::kLong)); };
  c.grad = {false, false};
  c.silent = [](const std::vector<Placement>& p) { return p[1] == Replicate(); };
  check_op(c);
}

TEST_CASE("isin with a split set: each rank tests its own part", "[ops][counting]") {
  for (const DeviceMesh& mesh : test_meshes()) {
    Placements split(mesh.ndim(), Shard(0));
    const at::Tensor set = at::randint(0, 60, {30}, at::kLong), few = at::randint(0, 60, {3, 5}, at::kLong);
    for (const bool invert : {false, true}) {
      CommDebugMode comm;
      const at::Tensor d = lay_out(set, mesh, split),
                       elements = lay_out(few, mesh, Placements(mesh.ndim(), Replicate()));
      const at::Tensor found = at::isin(elements, d, false, invert), one = at::isin(set[7].item(), d, false, invert);
      CHECK(comm.total() == 0);
      const Placements left(mesh.ndim(), Partial(invert ? ReduceOp::kMin : ReduceOp::kMax));
      CHECK(DTensor(found).placements() == left);
      CHECK(DTensor(one).placements() == left);
      CHECK(difference(found, at::isin(few, set, false, invert)) == std::nullopt);
      CHECK(difference(one, at::isin(set[7].item(), set, false, invert)) == std::nullopt);
    }
    // Exchanging results for many elements would cost more than the set.
    const at::Tensor many = at::randint(0, 60, {200}, at::kLong);
    const at::Tensor found =
        at::isin(lay_out(many, mesh, Placements(mesh.ndim(), Replicate())), lay_out(set, mesh, split));
    CHECK_FALSE(spec_of(found)->has_partial());
    CHECK(difference(found, at::isin(many, set)) == std::nullopt);
  }
}

TEST_CASE("margin losses keep rows split", "[ops][margin_loss]") {
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    OpCase c{"multi_margin_loss",
             [=](auto& t) { return Tensors{at::multi_margin_loss(t[0], t[1], 1, 0.7, t[2], reduction)}; },
             {{5, 3}, {5}, {3}}};
    c.make = [](size_t i, const auto& shape) {
      return i == 1 ? at::randint(0, 3, shape, at::TensorOptions(at::kLong)) : at::rand(shape, at::kDouble);
    };
    c.grad = {true, false, false};
    c.silent = [](const std::vector<Placement>& p) {
      return p[0] == Shard(0) && p[1] == Shard(0) && p[2] == Replicate();
    };
    check_op(c, 30);
    c.name = "one row", c.shapes = {{3}, {1}, {3}}, c.silent = {};
    check_op(c, 30);
    OpCase m{"multilabel_margin_loss",
             [=](auto& t) { return Tensors{at::multilabel_margin_loss(t[0], t[1], reduction)}; },
             {{5, 3}, {5, 3}}};
    m.make = [](size_t i, const auto& shape) {
      return i == 1 ? at::randint(-1, 3, shape, at::TensorOptions(at::kLong)) : at::rand(shape, at::kDouble);
    };
    m.grad = {true, false};
    m.silent = [](const std::vector<Placement>& p) { return p[0] == Shard(0) && p[1] == Shard(0); };
    check_op(m, 30);
    m.name = "one row", m.shapes = {{3}, {3}}, m.silent = {};
    check_op(m, 30);
  }
}

}  // namespace
}  // namespace dtensor::testing
