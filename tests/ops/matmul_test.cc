#include <ATen/TensorOperators.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/addr.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/vdot.h>
#include <c10/core/InferenceMode.h>

#include <limits>

#include "dtensor/dispatch.h"
#include "dtensor/redistribute.h"
#include "tests/testing/differential.h"

#include "tests/testing/catch_torch.h"

using namespace dtensor;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;

TEST_CASE("products of matrices and vectors match ATen in every layout") {
  const std::vector<OpCase> cases = {
      {.name = "mm", .fn = [](auto& t) { return Tensors{at::mm(t[0], t[1])}; }, .shapes = {{5, 6}, {6, 3}}},
      {.name = "mm of an empty inner dim", .fn = [](auto& t) { return Tensors{at::mm(t[0], t[1])}; }, .shapes = {{5, 0}, {0, 3}}},
      {.name = "bmm", .fn = [](auto& t) { return Tensors{at::bmm(t[0], t[1])}; }, .shapes = {{3, 2, 5}, {3, 5, 4}}},
      {.name = "addmm", .fn = [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2], 0.5, 2)}; }, .shapes = {{3}, {5, 6}, {6, 3}}},
      {.name = "addmm, full bias", .fn = [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2])}; }, .shapes = {{5, 3}, {5, 2}, {2, 3}}},
      {.name = "addmm, bias of one row", .fn = [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2])}; }, .shapes = {{1, 3}, {5, 2}, {2, 3}}},
      {.name = "addmm, bias of one column", .fn = [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2])}; }, .shapes = {{5, 1}, {5, 2}, {2, 3}}},
      {.name = "addmm, scalar bias", .fn = [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2])}; }, .shapes = {{}, {5, 6}, {6, 3}}},
      {.name = "baddbmm", .fn = [](auto& t) { return Tensors{at::baddbmm(t[0], t[1], t[2], 2, 0.5)}; }, .shapes = {{4}, {3, 2, 5}, {3, 5, 4}}},
      {.name = "baddbmm, bias per batch", .fn = [](auto& t) { return Tensors{at::baddbmm(t[0], t[1], t[2])}; }, .shapes = {{3, 1, 4}, {3, 2, 5}, {3, 5, 4}}},
      {.name = "addbmm", .fn = [](auto& t) { return Tensors{at::addbmm(t[0], t[1], t[2], 0.5, 2)}; }, .shapes = {{2, 4}, {3, 2, 5}, {3, 5, 4}}},
      {.name = "mv", .fn = [](auto& t) { return Tensors{at::mv(t[0], t[1])}; }, .shapes = {{5, 6}, {6}}},
      {.name = "addmv", .fn = [](auto& t) { return Tensors{at::addmv(t[0], t[1], t[2], 0.5, 2)}; }, .shapes = {{5}, {5, 6}, {6}}},
      {.name = "addmv, scalar bias", .fn = [](auto& t) { return Tensors{at::addmv(t[0], t[1], t[2])}; }, .shapes = {{}, {5, 6}, {6}}},
      {.name = "addr", .fn = [](auto& t) { return Tensors{at::addr(t[0], t[1], t[2], 0.5, 2)}; }, .shapes = {{5, 3}, {5}, {3}}},
      {.name = "dot", .fn = [](auto& t) { return Tensors{at::dot(t[0], t[1])}; }, .shapes = {{5}, {5}}},
      {.name = "vdot", .fn = [](auto& t) { return Tensors{at::vdot(t[0], t[1])}; }, .shapes = {{5}, {5}}},
      {.name = "outer", .fn = [](auto& t) { return Tensors{at::outer(t[0], t[1])}; }, .shapes = {{5}, {3}}},
      {.name = "linear", .fn = [](auto& t) { return Tensors{at::linear(t[0], t[1], t[2])}; }, .shapes = {{5, 6}, {3, 6}, {3}}},
      {.name = "linear without bias", .fn = [](auto& t) { return Tensors{at::linear(t[0], t[1])}; }, .shapes = {{5, 6}, {3, 6}}},
      {.name = "linear of 3 dims", .fn = [](auto& t) { return Tensors{at::linear(t[0], t[1], t[2])}; }, .shapes = {{4, 3, 6}, {3, 6}, {3}}},
      {.name = "matmul, broadcast", .fn = [](auto& t) { return Tensors{at::matmul(t[0], t[1])}; }, .shapes = {{3, 1, 2, 5}, {4, 5, 3}}},
      {.name = "matmul of a vector", .fn = [](auto& t) { return Tensors{at::matmul(t[0], t[1])}; }, .shapes = {{5}, {3, 5, 2}}},
  };
  for (const OpCase& c : cases) {
    DYNAMIC_SECTION(c.name) { check_op(c); }
  }
}

TEST_CASE("mm communicates only where the layouts do not fit") {
  OpCase c{"mm", [](auto& t) { return Tensors{at::mm(t[0], t[1])}; }, {{5, 6}, {6, 3}}};
  c.silent = [](const std::vector<Placement>& p) {
    return p[0] == Replicate() || p[1] == Replicate() || (p[0] == Shard(1) && p[1] == Shard(0));
  };
  check_op(c);
}

TEST_CASE("row-wise linear: the bias is an addend of the Partial result, without communication") {
  OpCase c{"addmm", [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2])}; }, {{3}, {5, 6}, {6, 3}}};
  c.silent = [](const std::vector<Placement>& p) {
    return p[0] == Replicate() && p[1] == Shard(1) && p[2] == Shard(0);
  };
  check_op(c);
  const DeviceMesh& mesh = test_meshes()[0];
  at::manual_seed(1);
  const auto bias = at::rand({3}), a = at::rand({5, 6}), b = at::rand({6, 3});
  const auto out = at::addmm(lay_out(bias, mesh, {Replicate()}), lay_out(a, mesh, {Shard(1)}), lay_out(b, mesh, {Shard(0)}));
  CHECK(meta_of(out).spec->placements() == Placements{Partial()});
}

TEST_CASE("addmm with beta = 0 ignores the bias, nan or not, in every layout") {
  OpCase c{"addmm", [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2], 0, 1)}; }, {{3}, {5, 6}, {6, 3}}};
  c.make = [](size_t i, const std::vector<int64_t>& shape) {
    return i == 0 ? at::full(shape, std::numeric_limits<double>::quiet_NaN(), at::kDouble) : at::rand(shape, at::kDouble);
  };
  c.grad = {false, true, true};
  check_op(c);
}

TEST_CASE("alpha and beta do not take part in the cached decision") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto bias = lay_out(at::rand({3}), mesh, {Replicate()}), a = lay_out(at::rand({5, 6}), mesh, {Shard(0)}),
             b = lay_out(at::rand({6, 3}), mesh, {Replicate()});
  at::addmm(bias, a, b, 0.25, 0.5);
  const auto before = strategy_cache(mesh.world()).stats();
  const auto out = at::addmm(bias, a, b, 0.75, 0.125);
  CHECK(strategy_cache(mesh.world()).stats().misses == before.misses);
  const auto expected = at::addmm(full_tensor(bias), full_tensor(a), full_tensor(b), 0.75, 0.125);
  CHECK_FALSE(difference(out, expected, 1e-6).has_value());
}

TEST_CASE("linear and matmul are decomposed in inference mode too") {
  c10::InferenceMode inference;
  const DeviceMesh& mesh = test_meshes()[1];
  const auto x = at::rand({4, 3, 6}, at::kDouble), w = at::rand({5, 6}, at::kDouble), b = at::rand({5}, at::kDouble);
  const auto dx = lay_out(x, mesh, {Shard(0), Replicate()}), dw = lay_out(w, mesh, {Replicate(), Shard(1)}),
             db = lay_out(b, mesh, {Replicate(), Replicate()});
  const auto wrong = difference(at::linear(dx, dw, db), at::linear(x, w, b));
  CHECK(wrong.value_or("") == "");
  const auto wrong_matmul = difference(at::matmul(dx, dw.t()), at::matmul(x, w.t()));
  CHECK(wrong_matmul.value_or("") == "");
}
