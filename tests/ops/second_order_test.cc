// Second derivatives of every family of operators that has a rule, compared with plain ATen, on sharded and Partial
// tensors. Also: gradients of distributed tensors are distributed, in hooks and from autograd::grad.
#include <torch/autograd.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using torch::Tensor;
using torch::autograd::grad;

struct Case {
  const char* name;
  std::function<Tensor(const Tensor& t, const Tensor& w)> f;
};

Tensor order_of(const Tensor& t, int64_t dim) { return t.argsort(dim); }

#define UNARY(op)                                                    \
  {                                                                  \
#op, [](const Tensor& t, const Tensor&) { return torch::op(t); } \
  }
#define BINARY(op)                                                        \
  {                                                                       \
#op, [](const Tensor& t, const Tensor& w) { return torch::op(t, w); } \
  }
#define OF(name, expression)                     \
  {                                              \
    name, [](const Tensor& t, const Tensor& w) { \
      (void)w;                                   \
      return expression;                         \
    }                                            \
  }

std::vector<Case> pointwise() {
  return {UNARY(abs),
          UNARY(acos),
          UNARY(asin),
          UNARY(atan),
          UNARY(asinh),
          UNARY(atanh),
          UNARY(cos),
          UNARY(cosh),
          UNARY(erf),
          UNARY(erfinv),
          UNARY(exp),
          UNARY(expm1),
          UNARY(lgamma),
          UNARY(log),
          UNARY(log1p),
          UNARY(neg),
          UNARY(reciprocal),
          UNARY(rsqrt),
          UNARY(sgn),
          UNARY(sign),
          UNARY(sigmoid),
          UNARY(sin),
          UNARY(sqrt),
          UNARY(square),
          UNARY(tan),
          UNARY(tanh),
          UNARY(relu),
          UNARY(gelu),
          UNARY(silu),
          UNARY(elu),
          UNARY(softplus),
          UNARY(hardswish),
          UNARY(mish),
          UNARY(log_sigmoid),
          UNARY(hardtanh),
          UNARY(leaky_relu),
          BINARY(add),
          BINARY(sub),
          BINARY(mul),
          BINARY(div),
          BINARY(atan2),
          BINARY(pow),
          BINARY(maximum),
          BINARY(minimum),
          BINARY(logaddexp),
          BINARY(hypot),
          OF("clamp", t.clamp(0.3, 0.6)),
          OF("lerp", torch::lerp(t, w, 0.3)),
          OF("addcmul", torch::addcmul(t, t, w)),
          OF("addcdiv", torch::addcdiv(t, t, w)),
          OF("where", torch::where(t > 0.5, t, w)),
          OF("masked_fill", t.masked_fill(t > 0.5, 2.))};
}

std::vector<Case> reductions() {
  return {OF("sum", t.sum(1)),
          OF("mean", t.mean(0)),
          OF("prod", t.prod(1)),
          OF("prod of all", t.prod()),
          OF("std", t.std(1)),
          OF("var", t.var(0)),
          OF("amax", t.amax(1)),
          OF("amin", t.amin(0)),
          OF("max", t.max()),
          OF("max of dim 0", std::get<0>(t.max(0))),
          OF("min of dim 1", std::get<0>(t.min(1))),
          OF("median", std::get<0>(t.median(1))),
          OF("median of all", t.median()),
          OF("kthvalue", std::get<0>(t.kthvalue(2, 1))),
          OF("mode", std::get<0>(t.mode(1))),
          OF("sort", std::get<0>(t.sort(0))),
          OF("topk", std::get<0>(t.topk(2, 1))),
          OF("cumsum", t.cumsum(0)),
          OF("cumprod of dim 1", t.cumprod(1)),
          OF("cumprod", t.cumprod(0)),
          OF("cummax", std::get<0>(t.cummax(1))),
          OF("cummin", std::get<0>(t.cummin(0))),
          OF("logcumsumexp", t.logcumsumexp(1)),
          OF("logsumexp", t.logsumexp(0)),
          OF("norm", t.norm()),
          OF("norm 1", t.norm(1)),
          OF("norm 1 of dim", t.norm(1, 1)),
          OF("norm 3", t.norm(3)),
          OF("norm inf", t.norm(INFINITY)),
          OF("softmax", t.softmax(1)),
          OF("log_softmax", t.log_softmax(0)),
          OF("nansum", t.nansum(1)),
          OF("dist", torch::dist(t, w)),
          OF("diff", t.diff(1, 0))};
}

std::vector<Case> matrices_and_movement() {
  return {OF("mm", t.mm(w.t())),
          OF("matmul", t.t().matmul(w)),
          OF("addmm", torch::addmm(t.mm(t.t()), t, w.t())),
          OF("mv", t.mv(w.select(0, 0))),
          OF("outer", torch::outer(t.select(1, 0), w.select(1, 1))),
          OF("linear", torch::linear(t, w)),
          OF("view", t.view(-1)),
          OF("reshape", t.reshape({3, 10})),
          OF("t", t.t()),
          OF("expand", t.unsqueeze(0).expand({3, 5, 6})),
          OF("slice", t.slice(0, 1, 4)),
          OF("slice with step", t.slice(1, 1, 5, 2)),
          OF("select", t.select(0, 2)),
          OF("unbind", t.unbind(0)[1]),
          OF("split", t.split(2)[1]),
          OF("unfold", t.unfold(1, 3, 2)),
          OF("diagonal", t.diagonal()),
          OF("flip", t.flip(0)),
          OF("roll", t.roll(1, 0)),
          OF("tril", t.tril()),
          OF("repeat", t.repeat({2, 1})),
          OF("cat", torch::cat({t, w}, 0)),
          OF("stack", torch::stack({t, w}, 1)),
          OF("pad", torch::constant_pad_nd(t, {1, 1})),
          OF("gather", t.gather(1, order_of(w, 1))),
          OF("index_select", t.index_select(0, w.select(1, 0).argsort())),
          OF("masked_select", t.masked_select(w > 0.5)),
          OF("scatter", t.scatter(1, order_of(w, 1), w * t)),
          OF("scatter_add", t.scatter_add(0, order_of(w, 0), w * t)),
          OF("index_add", t.index_add(0, w.select(1, 0).argsort(), t)),
          OF("scatter_reduce mean", t.scatter_reduce(1, order_of(w, 1), t, "mean")),
          OF("embedding", torch::embedding(t, w.argmax(0)))};
}

std::vector<Case> losses() {
  return {BINARY(mse_loss),
          OF("l1_loss", torch::l1_loss(t, w * 0.5)),
          BINARY(smooth_l1_loss),
          BINARY(huber_loss),
          BINARY(binary_cross_entropy),
          BINARY(binary_cross_entropy_with_logits),
          OF("nll_loss", torch::nll_loss(t, w.argmax(1))),
          OF("cross_entropy", torch::cross_entropy_loss(t, w.argmax(1))),
          OF("layer_norm", torch::layer_norm(t, {6}, w.select(0, 0), w.select(0, 1))),
          OF("cosine_embedding_loss", torch::cosine_embedding_loss(t, w, w.select(1, 0).gt(0.5) * 2. - 1.)),
          OF("cosine_similarity", torch::cosine_similarity(t, w, 1)),
          OF("quantile", torch::quantile(t, 0.3, 1)),
          OF("cumprod behind redistribute", (is_dtensor(t) ? redistribute(t, {Replicate()}) : t).cumprod(1)),
          OF("max behind redistribute", std::get<0>((is_dtensor(t) ? redistribute(t, {Shard(1)}) : t).max(1)))};
}

// Weighs every element differently, so that its position matters.
Tensor weighted_sum(const Tensor& y) {
  const auto weights = torch::linspace(0.5, 1.5, y.numel(), torch::kDouble).view(y.sizes());
  if (!is_dtensor(y)) return (y * weights).sum();
  const DeviceMesh& mesh = spec_of(y)->mesh();
  return (y * distribute_tensor(weights, mesh, Placements(mesh.ndim(), Replicate()))).sum();
}

struct Gradients {
  Tensor first, second;
};

Gradients gradients(const Case& c, const Tensor& x, const Tensor& w) {
  Gradients g;
  const Tensor h = x * 1;
  bool hooked = true;
  if (is_dtensor(x)) h.register_hook([&hooked](const Tensor& t) { hooked = hooked && is_dtensor(t); });
  g.first = grad({weighted_sum(c.f(h, w).pow(3))}, {h}, {}, true, true)[0];
  g.second = grad({g.first.square().sum() + h.square().sum()}, {x})[0];
  CHECK(hooked);
  return g;
}

void check_second_order(const std::vector<Case>& table) {
  torch::manual_seed(1);
  const auto x0 = torch::rand({5, 6}, torch::kDouble) * 0.8 + 0.1, w0 = torch::rand({5, 6}, torch::kDouble) * 0.8 + 0.1;
  const DeviceMesh mesh(World::local(2), {2});
  for (const Case& c : table) {
    const Gradients expected = gradients(c, x0.clone().requires_grad_(), w0);
    for (const Placement& p : {Replicate(), Shard(0), Shard(1), Partial()}) {
      CAPTURE(c.name, to_string(Placements{p}));
      const auto x = lay_out(x0, mesh, {p}).detach().requires_grad_();
      const auto w = distribute_tensor(w0, mesh, {p == Shard(0) ? Shard(1) : Shard(0)});
      Gradients g;
      REQUIRE_NOTHROW(g = gradients(c, x, w));
      REQUIRE(is_dtensor(g.first));
      REQUIRE(is_dtensor(g.second));
      CHECK(torch::allclose(full_tensor(g.first.detach()), expected.first.detach(), 1e-8, 1e-10));
      CHECK(torch::allclose(full_tensor(g.second), expected.second, 1e-7, 1e-9));
    }
  }
}

}  // namespace

TEST_CASE("second order: pointwise operators") { check_second_order(pointwise()); }
TEST_CASE("second order: reductions, scans and sorts") { check_second_order(reductions()); }
TEST_CASE("second order: products, views and indexing") { check_second_order(matrices_and_movement()); }
TEST_CASE("second order: losses and composites") { check_second_order(losses()); }

TEST_CASE("second order: retained gradients are distributed") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto x = distribute_tensor(torch::rand({4, 4}), mesh, {Shard(0)}).requires_grad_();
  const auto h = x * 1;
  h.retain_grad();
  std::get<0>(h.max(1)).sum().backward();
  REQUIRE(is_dtensor(h.grad()));
  CHECK_NOTHROW(h.grad() * h);
}

}  // namespace dtensor::testing
