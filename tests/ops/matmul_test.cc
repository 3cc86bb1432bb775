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

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "mesh/world.h"
#include "observe/comm_debug_mode.h"
#include "propagation/strategy_cache.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;

TEST_CASE("products of matrices and vectors match ATen in every layout") {
  struct Product {
    const char* name;
    at::Tensor (*fn)(const Tensors&);
    std::vector<std::vector<int64_t>> shapes;
  };
  const std::vector<Product> products = {
      {"mm", [](const Tensors& t) { return at::mm(t[0], t[1]); }, {{5, 6}, {6, 3}}},
      {"mm of an empty inner dim", [](const Tensors& t) { return at::mm(t[0], t[1]); }, {{5, 0}, {0, 3}}},
      {"bmm", [](const Tensors& t) { return at::bmm(t[0], t[1]); }, {{3, 2, 5}, {3, 5, 4}}},
      {"addmm", [](const Tensors& t) { return at::addmm(t[0], t[1], t[2], 0.5, 2); }, {{3}, {5, 6}, {6, 3}}},
      {"addmm, full bias", [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); }, {{5, 3}, {5, 2}, {2, 3}}},
      {"addmm, bias of one row",
       [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); },
       {{1, 3}, {5, 2}, {2, 3}}},
      {"addmm, bias of one column",
       [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); },
       {{5, 1}, {5, 2}, {2, 3}}},
      {"addmm, scalar bias", [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); }, {{}, {5, 6}, {6, 3}}},
      {"baddbmm", [](const Tensors& t) { return at::baddbmm(t[0], t[1], t[2], 2, 0.5); }, {{4}, {3, 2, 5}, {3, 5, 4}}},
      {"baddbmm, bias per batch",
       [](const Tensors& t) { return at::baddbmm(t[0], t[1], t[2]); },
       {{3, 1, 4}, {3, 2, 5}, {3, 5, 4}}},
      {"addbmm", [](const Tensors& t) { return at::addbmm(t[0], t[1], t[2], 0.5, 2); }, {{2, 4}, {3, 2, 5}, {3, 5, 4}}},
      {"mv", [](const Tensors& t) { return at::mv(t[0], t[1]); }, {{5, 6}, {6}}},
      {"addmv", [](const Tensors& t) { return at::addmv(t[0], t[1], t[2], 0.5, 2); }, {{5}, {5, 6}, {6}}},
      {"addmv, scalar bias", [](const Tensors& t) { return at::addmv(t[0], t[1], t[2]); }, {{}, {5, 6}, {6}}},
      {"addr", [](const Tensors& t) { return at::addr(t[0], t[1], t[2], 0.5, 2); }, {{5, 3}, {5}, {3}}},
      {"dot", [](const Tensors& t) { return at::dot(t[0], t[1]); }, {{5}, {5}}},
      {"vdot", [](const Tensors& t) { return at::vdot(t[0], t[1]); }, {{5}, {5}}},
      {"outer", [](const Tensors& t) { return at::outer(t[0], t[1]); }, {{5}, {3}}},
      {"linear", [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }, {{5, 6}, {3, 6}, {3}}},
      {"linear without bias", [](const Tensors& t) { return at::linear(t[0], t[1]); }, {{5, 6}, {3, 6}}},
      {"linear of 3 dims", [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }, {{4, 3, 6}, {3, 6}, {3}}},
      {"matmul, broadcast", [](const Tensors& t) { return at::matmul(t[0], t[1]); }, {{3, 1, 2, 5}, {4, 5, 3}}},
      {"matmul of a vector", [](const Tensors& t) { return at::matmul(t[0], t[1]); }, {{5}, {3, 5, 2}}},
  };
  for (const Product& p : products) {
    DYNAMIC_SECTION(p.name) {
      check_op({p.name, [&](auto& t) { return Tensors{p.fn(t)}; }, p.shapes});
    }
  }
}

TEST_CASE("mm communicates only if the layouts do not fit") {
  OpCase c{"mm", [](auto& t) { return Tensors{at::mm(t[0], t[1])}; }, {{5, 6}, {6, 3}}};
  c.silent = [](const std::vector<Placement>& p) {
    return p[0] == Replicate() || p[1] == Replicate() || (p[0] == Shard(1) && p[1] == Shard(0));
  };
  check_op(c);
}

TEST_CASE("views of one Partial tensor are reduced once for their product") {
  struct Product {
    const char* name;
    at::Tensor (*fn)(const at::Tensor&);
    std::vector<int64_t> shape;
    Placements placements;
    int64_t calls, bytes;  // received by a rank
  };
  const DeviceMesh mesh(World::local(4), {2, 2});
  const Placement rows = Shard(0), whole = Replicate(), sum = Partial();
  const auto with_transposed = [](const at::Tensor& x) { return x.mm(x.t()); };
  const auto transposed_with = [](const at::Tensor& x) { return x.t().mm(x); };
  for (const auto& [name, fn, shape, placements, calls, bytes] :
       {Product{"x x^T", with_transposed, {4, 6}, {sum, whole}, 1, 4 * 6 * 8},
        Product{"x x^T, all ranks", with_transposed, {4, 6}, {sum, sum}, 1, 4 * 6 * 8 * 3 / 2},
        Product{"x^T x", transposed_with, {4, 6}, {sum, whole}, 1, 4 * 6 * 8},
        Product{"x x^T of rows", with_transposed, {4, 6}, {sum, rows}, 2, 2 * (2 * 6 * 8)},
        Product{"x^T x of columns", transposed_with, {4, 6}, {Shard(1), sum}, 2, 2 * (4 * 3 * 8)},
        Product{
            "batches", [](const at::Tensor& x) { return x.bmm(x.mT()); }, {4, 3, 6}, {sum, whole}, 1, 2 * 3 * 6 * 8},
        Product{"elementwise",
                [](const at::Tensor& x) { return x * x.t(); },
                {4, 4},
                {sum, rows},
                2,
                2 * (2 * 4 * 8) - 32}}) {
    CAPTURE(name);
    check_op({name, [fn = fn](auto& t) { return Tensors{fn(t[0])}; }, {shape}});
    const at::Tensor x = distribute_tensor(at::rand(shape, at::kDouble), mesh, placements);
    CommDebugMode comm;
    fn(x);
    CHECK(comm.total() == calls);
    CHECK(comm.bytes() == bytes);
  }
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
  const auto out =
      at::addmm(lay_out(bias, mesh, {Replicate()}), lay_out(a, mesh, {Shard(1)}), lay_out(b, mesh, {Shard(0)}));
  CHECK(meta_for_read(out).spec->placements() == Placements{Partial()});
}

TEST_CASE("addmm with beta = 0 ignores the bias, nan or not, in every layout") {
  OpCase c{"addmm", [](auto& t) { return Tensors{at::addmm(t[0], t[1], t[2], 0, 1)}; }, {{3}, {5, 6}, {6, 3}}};
  c.make = [](size_t i, const std::vector<int64_t>& shape) {
    return i == 0 ? at::full(shape, std::numeric_limits<double>::quiet_NaN(), at::kDouble)
                  : at::rand(shape, at::kDouble);
  };
  c.grad = {false, true, true};
  check_op(c);
}

TEST_CASE("alpha and beta are not part of the cached decision") {
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
