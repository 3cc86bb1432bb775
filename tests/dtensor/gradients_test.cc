// Autograd through distributed tensors: gradients equal those on one device, in guaranteed layouts.
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "comm/scope.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

TEST_CASE("gradients: in-place operators on views give the gradients of one device") {
  torch::manual_seed(0);
  const auto mesh = mesh4();
  const auto x0 = torch::randn({6, 4}, torch::kDouble);
  const auto compute = [](const Tensor& x) {
    auto y = x * 2;
    y.view(24).slice(0, 2, 8).mul_(3);
    y.select(1, 0).fill_(1.5);
    y.t().slice(0, 1, 2).copy_(torch::zeros_like(y.t().slice(0, 1, 2)));
    y.narrow(0, 1, 2).add_(y.narrow(0, 3, 2).clone().sin());
    return (y * y).sum();
  };
  auto plain = x0.clone().requires_grad_();
  compute(plain).backward();
  auto x = leaf(x0, mesh, {Replicate()});
  compute(x).backward();
  CHECK(same(x.grad(), plain.grad()));
  // Flattening an unevenly sharded dim moves data: the view is a copy, and still writes back.
  for (const Placement& p : {Shard(0), Shard(1)}) {
    auto y = leaf(x0, mesh, {p});
    compute(y).backward();
    CHECK(same(y.grad(), plain.grad()));
  }
  // A view without communication writes through in any layout.
  auto z = leaf(x0, mesh, {Shard(0)});
  auto zp = x0.clone().requires_grad_();
  const auto columns = [](const Tensor& t) {
    auto u = t * 2;
    u.select(1, 0).fill_(1.5);
    u.t().narrow(0, 2, 2).mul_(3);
    u.unsqueeze(1).add_(1);
    return (u * u).sum();
  };
  columns(z).backward();
  columns(zp).backward();
  CHECK(same(z.grad(), zp.grad()));
}

TEST_CASE("gradients: averages and maxima") {
  const auto mesh = mesh4();
  std::vector<Tensor> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(torch::full({2}, i, torch::kDouble).requires_grad_());
  full_tensor(from_local(parts, mesh, {Partial(ReduceOp::kAvg)})).sum().backward();
  for (const auto& t : parts) CHECK(torch::equal(t.grad(), torch::full({2}, 0.25, torch::kDouble)));
  CHECK_THROWS_AS(from_local(parts, mesh, {Partial(ReduceOp::kMax)}), c10::NotImplementedError);
}

TEST_CASE("gradients: double backward, hooks, accumulation, retain_grad, detach") {
  torch::manual_seed(1);
  const auto mesh = mesh4();
  const auto x0 = torch::randn({5, 3}, torch::kDouble), w0 = torch::randn({3, 3}, torch::kDouble);
  const auto compute = [](const Tensor& x, const Tensor& w) {
    const auto y = torch::tanh(x.mm(w)).pow(3).sum();
    const auto g = torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    return (g * g).sum() + y;
  };
  auto xp = x0.clone().requires_grad_(), wp = w0.clone().requires_grad_();
  compute(xp, wp).backward();
  compute(xp, wp).backward();
  for (const auto& [px, pw] : std::vector<std::pair<Placement, Placement>>{
           {Replicate(), Replicate()}, {Shard(0), Replicate()}, {Replicate(), Shard(1)}, {Shard(1), Shard(0)}}) {
    INFO(to_string(px) << " " << to_string(pw));
    auto x = leaf(x0, mesh, {px}), w = leaf(w0, mesh, {pw});
    int hook_calls = 0;
    x.register_hook([&](const Tensor& g) {
      ++hook_calls;
      REQUIRE(is_dtensor(g));
      return g;
    });
    compute(x, w).backward();
    compute(x, w).backward();
    CHECK(hook_calls >= 2);
    CHECK(same(x.grad(), xp.grad()));
    CHECK(same(w.grad(), wp.grad()));
    CHECK(meta_for_read(x.grad()).spec->placements() == Placements{px});
    CHECK(meta_for_read(w.grad()).spec->placements() == Placements{pw});
    CHECK_FALSE(x.detach().requires_grad());
    CHECK(is_dtensor(x.detach()));
  }
  auto x = leaf(x0, mesh, {Shard(0)});
  auto mid = x * 3;
  mid.retain_grad();
  mid.sum().backward();
  CHECK(same(mid.grad(), torch::ones({5, 3}, torch::kDouble)));
}

TEST_CASE("gradients: reduced once, or when the user calls reduce_gradients") {
  const auto mesh = mesh4();
  const auto w0 = torch::randn({3, 2}, torch::kDouble), x0 = torch::randn({8, 3}, torch::kDouble);
  auto w = leaf(w0, mesh, {Replicate()});
  const auto x = distribute_tensor(x0, mesh, {Shard(0)});
  Counter counter;
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&counter); });
  {
    DelayGradientReduction delay;
    x.mm(w).sum().backward();
    x.mm(w).sum().backward();
  }
  CHECK(counter.events.empty());
  CHECK(meta_for_read(w.grad()).spec->placements() == Placements{Partial()});
  reduce_gradients({w});
  CHECK(counter.events.size() == 1);
  const auto expected = x0.t().mm(torch::ones({8, 2}, torch::kDouble)) * 2;
  CHECK(same(w.grad(), expected));

  auto v = leaf(w0, mesh, {Replicate()});
  counter.events.clear();
  x.mm(v).sum().backward();
  REQUIRE(counter.events.size() == 1);
  CHECK(counter.events[0].cause.op == "gradient");
  CHECK(counter.events[0].backward);
  CHECK(same(v.grad(), expected / 2));
}

// Computes without autograd, as functions of users do.
struct Twice : torch::autograd::Function<Twice> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 2};
  }
};

TEST_CASE("gradients: keep the layout of a parameter that only calls without autograd see") {
  const auto mesh = mesh4();
  auto x = leaf(torch::ones({6, 4}, torch::kDouble), mesh, {Shard(0)});
  x.register_hook([](const Tensor& g) { return redistribute(g, {Replicate()}); });
  for (int i = 0; i < 3; ++i) {
    Twice::apply(x).sum().backward();
    CHECK(spec_of(x.grad())->placements() == Placements{Shard(0)});
    CHECK(torch::equal(full_tensor(x.grad()), torch::full({6, 4}, 2., torch::kDouble)));
    const torch::NoGradGuard as_an_optimizer;
    x.mul_(1);
    x.mutable_grad() = Tensor();
  }
}

TEST_CASE("gradients: the version counter detects in-place changes of saved tensors") {
  const auto mesh = mesh4();
  auto x = leaf(torch::randn({4, 4}), mesh, {Shard(0)});
  auto y = x * 1;
  const auto z = (y * y).sum();
  y.add_(1);
  CHECK_THROWS_WITH(z.backward(), Catch::Contains("modified by an inplace operation"));
}

TEST_CASE("gradients: to_local, from_local, full_tensor are differentiable") {
  torch::manual_seed(4);
  const auto mesh = mesh4();
  const auto x0 = torch::randn({5, 3}, torch::kDouble);
  auto x = leaf(x0, mesh, {Shard(0)});
  const auto parts = to_local(x);
  REQUIRE(parts.size() == 4);
  CHECK(parts[3].size(0) == 0);  // 5 rows over 4 ranks: 2, 2, 1, 0
  FromLocalOptions options;
  options.shape = {5, 3};
  const auto back = from_local({parts[0] * 2, parts[1] * 3, parts[2] * 5, parts[3] * 7}, mesh, {Shard(0)}, options);
  (full_tensor(back) * full_tensor(back)).sum().backward();
  auto plain = x0.clone().requires_grad_();
  const auto scale = torch::tensor({2, 2, 3, 3, 5}, torch::kDouble).view({5, 1});
  (plain * scale * plain * scale).sum().backward();
  CHECK(same(x.grad(), plain.grad()));

  auto r = leaf(x0, mesh, {Shard(0)});
  const auto moved = redistribute(redistribute(r, {Shard(1)}), {Replicate()});
  (moved * moved).sum().backward();
  CHECK(same(r.grad(), x0 * 2));
  CHECK(meta_for_read(r.grad()).spec->placements() == Placements{Shard(0)});
}

TEST_CASE("gradients: replicas from to_local must have equal gradients") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  const auto ones = torch::ones({3}, torch::kDouble);
  auto x = leaf(ones, mesh, {Replicate()});
  CHECK_THROWS_WITH(to_local(x)[0].sum().backward(),
                    Catch::Contains("[to_local] backward") && Catch::Contains("rank 1 was not used"));
  auto parts = to_local(x);
  CHECK_THROWS_WITH((parts[0].sum() + 2 * parts[1].sum()).backward(), Catch::Contains("they differ"));
  parts = to_local(x);
  (parts[0].sum() + parts[1].sum()).backward();
  CHECK(full_tensor(x.grad()).sum().item<double>() == 3);
  auto y = leaf(ones, mesh, {Replicate()});
  to_local(y, Placements{Partial()})[0].sum().backward();
  CHECK(full_tensor(y.grad()).sum().item<double>() == 3);
  // The gradient of an unused shard is zero.
  auto z = leaf(ones, mesh, {Shard(0)});
  to_local(z)[0].sum().backward();
  CHECK(torch::equal(full_tensor(z.grad()), torch::tensor({1., 1., 0.}, torch::kDouble)));
}

TEST_CASE("gradients: a plain gradient in a world without data is an error") {
  const DeviceMesh mesh(World::abstract(2), {2}, {"x"});
  const auto x = leaf(torch::empty({4}, torch::kMeta), mesh, {Shard(0)});
  const auto y = redistribute(x, {Replicate()});
  const auto plain = torch::ones({4}).requires_grad_();
  const auto g = torch::autograd::grad({y}, {x}, {plain}, std::nullopt, /*create_graph=*/true)[0];
  CHECK_THROWS_WITH(g.sum().backward(), Catch::Contains("[full_tensor]") && Catch::Contains("has no data"));
}

}  // namespace
}  // namespace dtensor
