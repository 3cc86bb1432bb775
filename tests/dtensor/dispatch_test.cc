// In-place operators, views, modes, errors: distributed tensors behave like plain ones.

#include <torch/autograd.h>
#include <torch/nn.h>

#include "comm/scope.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "propagation/strategy_cache.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

}  // namespace

TEST_CASE("dispatch: a write through a view changes the base and drops its cached sum") {
  const auto mesh = mesh4();
  const auto base = from_local({torch::ones({2, 3}), torch::ones({2, 3}), torch::ones({2, 3}), torch::ones({2, 3})},
                               mesh, {Partial()});
  CHECK(full_tensor(base).sum().item<float>() == 24);  // caches the reduced tensor
  base.view(6).mul_(2);
  CHECK(full_tensor(base).sum().item<float>() == 48);
}

TEST_CASE("dispatch: a Partial is reduced only once") {
  const auto mesh = mesh4();
  const auto p = distribute_tensor(torch::ones({2, 4}), mesh, {Shard(1)})
                     .mm(distribute_tensor(torch::ones({4, 3}), mesh, {Shard(0)}));
  REQUIRE(meta_for_read(p).spec->placements() == Placements{Partial()});
  Counter counter;
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&counter); });
  const auto a = p.exp(), b = p.sin();
  CHECK(counter.events.size() == 1);
  CHECK(counter.events[0].cause.op == "aten::exp");
  CHECK(counter.events[0].cause.implicit);
  CHECK(full_tensor(b).size(0) == 2);
}

TEST_CASE("dispatch: operators use the cached reduced tensor until a write") {
  const auto mesh = mesh4();
  const auto a = distribute_tensor(torch::ones({2, 4}), mesh, {Shard(1)}),
             b = distribute_tensor(torch::ones({4, 3}), mesh, {Shard(0)});
  const auto p = a.mm(b), whole = torch::full({2, 3}, 4.0);
  const auto layout = [](const Tensor& t) { return to_string(meta_for_read(t).spec->placements()); };
  CHECK(layout(p * 2) == "P(sum)");
  Counter counter;
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&counter); });
  p.exp();
  const auto twice = p * 2, squared = p * p;
  CHECK(layout(twice) == "R");
  CHECK(layout(squared) == "R");
  CHECK(counter.events.size() == 1);
  CHECK(torch::equal(to_local(squared)[3], whole * whole));
  CHECK(layout(p.t()) == "P(sum)");  // a view of p
  p.t().mul_(3);                     // a write through the view
  CHECK(layout(p * 2) == "P(sum)");
  CHECK(torch::equal(full_tensor(p * 2), whole * 6));
  p.exp();
  p.add_(p);  // p keeps its layout, next to the cached layout
  CHECK(layout(p) == "P(sum)");
  CHECK(torch::equal(full_tensor(p), whole * 6));
}

TEST_CASE("dispatch: a cached reduce-scatter does not replace the Partial") {
  const auto mesh = mesh4();
  const auto p = distribute_tensor(torch::ones({4, 4}), mesh, {Shard(1)})
                     .mm(distribute_tensor(torch::ones({4, 4}), mesh, {Shard(0)}));
  const auto row = distribute_tensor(torch::ones({4}), mesh, {Shard(0)});
  CHECK(to_string(meta_for_read(p * row).spec->placements()) == "S(1)");
  Counter counter;
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&counter); });
  p.cumsum(0), p.cumsum(1), p.exp(), p.cumsum(0), p.cumsum(1);
  CHECK(counter.events.size() <= 2);
}

TEST_CASE("dispatch: a Partial that was gathered and reduced is not replaced") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const auto p = distribute_tensor(torch::ones({2, 4}), mesh, {Shard(0), Shard(1)})
                     .mm(distribute_tensor(torch::ones({4, 3}), mesh, {Replicate(), Shard(0)}));
  const auto layout = [](const Tensor& t) { return to_string(meta_for_read(t).spec->placements()); };
  REQUIRE(layout(p) == "S(0)P(sum)");
  p.cumsum(0);  // along the sharded dim: needs all of it
  CHECK(layout(p * 2) == "S(0)P(sum)");
}

TEST_CASE("dispatch: returned tensors share no memory with others") {
  const auto mesh = mesh4();
  const auto sum = [](const Tensor& t) { return full_tensor(t).sum().item<double>(); };
  const auto partial = [&] {
    return distribute_tensor(torch::ones({2, 4}, torch::kDouble), mesh, {Shard(1)})
        .mm(distribute_tensor(torch::ones({4, 2}, torch::kDouble), mesh, {Shard(0)}));
  };
  const auto p = partial();  // 2 x 2 fours
  CHECK(sum(p.exp().log()) == Approx(16));
  for (const Placement& to : {Replicate(), Shard(0)}) {
    redistribute(p, {to}).add_(100);
    CHECK(sum(redistribute(p, {to})) == 16);
    CHECK(sum(p.exp().log()) == Approx(16));
  }
  full_tensor(p).add_(100);
  CHECK(sum(p) == 16);
  mutable_local_tensors(p)[0].add_(100);  // the user's write, which the library sees
  CHECK(sum(p.sqrt().square()) == Approx(416));

  // Gradients of two parameters that come from one Partial.
  const auto x = distribute_tensor(torch::ones({8, 3}, torch::kDouble), mesh, {Shard(0)});
  auto a = leaf(torch::ones({3}, torch::kDouble), mesh, {Replicate()}),
       b = leaf(torch::ones({3}, torch::kDouble), mesh, {Replicate()});
  ((a + b) * x).sum().backward();
  a.grad().mul_(0.5);
  CHECK(sum(a.grad()) == 12);
  CHECK(sum(b.grad()) == 24);
  // A plain gradient, the same for all ranks.
  auto c = leaf(torch::ones({3}, torch::kDouble), mesh, {Replicate()});
  (full_tensor(c) * torch::tensor({1.0, 2.0, 3.0}, torch::kDouble)).sum().backward();
  c.grad().mul_(0.5);
  CHECK(same(c.grad(), torch::tensor({0.5, 1.0, 1.5}, torch::kDouble)));
  for (const auto& local : to_local(c.grad())) CHECK(local.sum().item<double>() == 3);
  auto d = leaf(torch::ones({3}, torch::kDouble), mesh, {Replicate()});
  const auto parts = to_local(d, Placements{Partial()});
  (parts[0] + parts[1] + parts[2] + parts[3]).sum().backward();
  d.grad().mul_(0.5);
  CHECK(sum(d.grad()) == 6);

  // A change of layout without communication.
  const DeviceMesh one(World::local(1), {1}, {"x"});
  const auto s = distribute_tensor(torch::ones({4}), one, {Shard(0)});
  redistribute(s, {Replicate()}).add_(5);
  full_tensor(s).add_(5);
  CHECK(sum(s) == 4);
}

TEST_CASE("dispatch: tensors made in inference mode work in autograd later") {
  const auto mesh = mesh4();
  auto w = leaf(torch::ones({4, 2}, torch::kDouble), mesh, {Shard(0)});
  const auto p = distribute_tensor(torch::ones({2, 4}, torch::kDouble), mesh, {Shard(1)}).mm(w);
  {
    c10::InferenceMode inference;
    p.exp();
  }
  p.exp().sum().backward();
  CHECK(same(w.grad(), torch::full({4, 2}, 2 * std::exp(4.0), torch::kDouble)));
}

TEST_CASE("dispatch: a copied view is read again after a write to its base") {
  const auto mesh = mesh4();
  auto y = distribute_tensor(torch::zeros({8, 4}), mesh, {Shard(0)});
  const auto row = y[2];
  CHECK(full_tensor(row).sum().item<float>() == 0);
  y.fill_(1);
  CHECK((row + row).sum().item<float>() == 8);
  y.fill_(2);
  CHECK(full_tensor(row).sum().item<float>() == 8);
  y.fill_(1);
  CHECK(full_tensor(y[2]).sum().item<float>() == 4);
}

TEST_CASE("dispatch: results follow the default dtype") {
  const auto x = distribute_tensor(torch::arange(8), mesh4(), {Shard(0)});
  CHECK((x / 2).scalar_type() == torch::kFloat);
  const auto before = torch::get_default_dtype();
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const auto y = x / 2;
  torch::set_default_dtype(before);
  CHECK(y.scalar_type() == torch::kDouble);
  CHECK(full_tensor(y).scalar_type() == torch::kDouble);
}

TEST_CASE("dispatch: inference mode, no-grad mode") {
  const auto mesh = mesh4();
  const auto w0 = torch::randn({4, 3});
  auto w = leaf(w0, mesh, {Shard(0)});
  {
    c10::InferenceMode inference;
    const auto x = distribute_tensor(torch::ones({2, 4}), mesh);
    const auto y = torch::linear(x, w.t());
    CHECK(same(y, torch::ones({2, 4}).mm(w0)));
    auto v = w.view({2, 6});  // a view of a normal tensor is a normal tensor
    CHECK_FALSE(v.is_inference());
  }
  {
    torch::NoGradGuard no_grad;
    w.add_(1);
  }
  CHECK(same(w, w0 + 1));
  CHECK(w.is_leaf());
}

TEST_CASE("dispatch: modules move and clone") {
  torch::manual_seed(2);
  const auto mesh = mesh4();
  torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
                              torch::nn::Linear(8, 2));
  torch::nn::Sequential plain = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  {
    torch::NoGradGuard no_grad;
    for (auto& p : model->parameters()) {
      const Placement placement = p.dim() == 2 ? Shard(0) : Replicate();
      p.set_data(distribute_tensor(p.detach(), mesh, {placement}));
    }
  }
  model->to(torch::kDouble);
  plain->to(torch::kDouble);
  const auto x0 = torch::randn({5, 4}, torch::kDouble);
  const auto check = [&](torch::nn::Sequential& m) {
    plain->zero_grad();
    m->zero_grad();
    const auto expected = plain->forward(x0).pow(2).mean();
    expected.backward();
    const auto got = m->forward(distribute_tensor(x0, mesh)).pow(2).mean();
    got.backward();
    CHECK(same(got, expected));
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      REQUIRE(is_dtensor(m->parameters()[i]));
      CHECK(m->parameters()[i].scalar_type() == torch::kDouble);
      CHECK(same(m->parameters()[i].grad(), plain->parameters()[i].grad()));
      CHECK(meta_for_read(m->parameters()[i].grad()).spec->placements() ==
            meta_for_read(m->parameters()[i]).spec->placements());
    }
  };
  check(model);
  torch::nn::Sequential copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  check(copy);
  torch::NoGradGuard no_grad;
  copy->parameters()[0].zero_();
  CHECK(full_tensor(model->parameters()[0]).abs().sum().item<double>() > 0);
}

TEST_CASE("dispatch: two worlds in one process are independent") {
  const auto a = mesh4(), b = DeviceMesh(World::local(2), {2}, {"x"});
  const auto x0 = torch::randn({4, 3});
  const auto xa = distribute_tensor(x0, a, {Shard(0)}), xb = distribute_tensor(x0, b, {Shard(0)});
  CHECK(same(xa + xa, x0 + x0));
  CHECK(strategy_cache(b.world()).stats().misses == 0);
  CHECK(same(xb + xb, x0 + x0));
  CHECK_THAT(testing::error_text([&] { xa + xb; }),
             Catch::Contains("aten::add.Tensor: argument 'other' is on mesh(x=2)"));
}

TEST_CASE("dispatch: a world is freed with its last handle and tensor") {
  std::weak_ptr<const Spec> spec;
  {
    const auto mesh = mesh4();
    const auto x = distribute_tensor(torch::randn({4, 3}), mesh, {Shard(0)});
    const auto y = (x + x).mm(distribute_tensor(torch::randn({3, 2}), mesh));
    spec = meta_for_read(y).spec;
    CHECK_FALSE(spec.expired());
  }
  CHECK(spec.expired());
}

TEST_CASE("dispatch: a plain tensor next to a distributed one is an error with a remedy") {
  const auto mesh = mesh4();
  const auto x = distribute_tensor(torch::ones({4, 3}), mesh, {Shard(0)});
  const auto text = testing::error_text([&] { x.mm(torch::ones({3, 2})); });
  CHECK_THAT(text,
             Catch::StartsWith(
                 "aten::mm: argument 'mat2' is a plain tensor of shape [3, 2] next to a distributed one on mesh(x=4)"));
  CHECK_THAT(text, Catch::Contains("distribute_tensor") && Catch::Contains("ImplicitReplication"));
  CHECK(same(x * torch::tensor(2.0f), torch::full({4, 3}, 2.0f)));  // zero-dim: allowed
  {
    ImplicitReplication replicated;
    CHECK(same(x.mm(torch::ones({3, 2})), torch::full({4, 2}, 3.0f)));
  }
  auto plain = torch::ones({4, 3});
  CHECK_THAT(testing::error_text([&] { plain.add_(x); }),
             Catch::StartsWith("aten::add_.Tensor: writes to a plain tensor"));
}

TEST_CASE("dispatch: an operator without a rule fails before any communication") {
  const auto mesh = mesh4();
  Counter counter;
  ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&counter); });
  const auto x = distribute_tensor(torch::rand({8, 3}), mesh, {Shard(0)}, std::nullopt);
  CHECK_THROWS_AS(torch::hash_tensor(x, {}), c10::NotImplementedError);
  CHECK_THAT(testing::error_text([&] { torch::hash_tensor(x, {}); }),
             Catch::Contains("does not have a sharding strategy registered"));
  CHECK(counter.events.empty());
  ReplicateUnsupported replicated;
  const auto hash = torch::hash_tensor(x, {});
  CHECK(meta_for_read(hash).spec->placements() == Placements{Replicate()});
  CHECK(same(hash.to(torch::kLong), torch::hash_tensor(full_tensor(x), {}).to(torch::kLong)));
  CHECK_FALSE(counter.events.empty());
}

TEST_CASE("dispatch: shape errors are ATen's own, and leave no state behind") {
  const auto mesh = mesh4();
  const auto x = distribute_tensor(torch::ones({4, 3}), mesh, {Shard(0)});
  CHECK_THAT(testing::error_text([&] { x.mm(x); }), Catch::Contains("mat1 and mat2 shapes cannot be multiplied"));
  CHECK_THAT(testing::error_text([&] {
               x + distribute_tensor(torch::ones({2, 2}), mesh);
             }),
             Catch::Contains("must match"));
  CHECK_THAT(testing::error_text([&] { x.view({5, 5}); }), Catch::Contains("invalid for input of size 12"));
  CHECK(same(x + x, torch::full({4, 3}, 2.0f)));

  struct Refuse : CommListener {
    void on_comm(const CommEvent&, bool) override { TORCH_CHECK(false, "no communication here"); }
  } refuse;
  auto y = distribute_tensor(torch::ones({4, 3}), mesh, {Shard(0)}, std::nullopt);
  {
    ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&refuse); });
    CHECK_THAT(testing::error_text([&] { full_tensor(y); }), Catch::Contains("no communication here"));
  }
  CHECK(same(y, torch::ones({4, 3})));
}

TEST_CASE("dispatch: in-place operators keep the layout of the written tensor") {
  const auto mesh = mesh4();
  auto x = distribute_tensor(torch::ones({4, 3}), mesh, {Shard(0)});
  const auto y = distribute_tensor(torch::full({4, 3}, 2.0f), mesh, {Shard(1)});
  x.add_(y);
  CHECK(meta_for_read(x).spec->placements() == Placements{Shard(0)});
  CHECK(same(x, torch::full({4, 3}, 3.0f)));
  auto out = distribute_tensor(torch::zeros({4, 3}), mesh, {Shard(1)});
  torch::mul_out(out, x, y);
  CHECK(meta_for_read(out).spec->placements() == Placements{Shard(1)});
  CHECK(same(out, torch::full({4, 3}, 6.0f)));
  auto p = from_local({torch::ones({2}), torch::ones({2}), torch::ones({2}), torch::ones({2})}, mesh, {Partial()});
  CHECK_THAT(testing::error_text([&] { p.exp_(); }),
             Catch::Contains("in-place operations that require placement changes are not supported"));
}

TEST_CASE("dispatch: a decision is cached for all scalar values but not for other arguments") {
  const auto mesh = mesh4();
  const auto x = distribute_tensor(torch::ones({4, 6}), mesh, {Shard(0)});
  auto& cache = strategy_cache(mesh.world());
  const auto misses = [&](const std::function<void()>& f) {
    const auto before = cache.stats().misses;
    f();
    return cache.stats().misses - before;
  };
  CHECK(misses([&] { x.mul(2.0); }) == 1);
  CHECK(misses([&] { x.mul(3.5); }) == 0);
  CHECK(misses([&] { x.sum({1}); }) == 1);
  CHECK(misses([&] { x.sum({0}); }) == 1);
  CHECK(misses([&] { x.sum({0}, true); }) == 1);
  CHECK(misses([&] { x.sum({0}, true); }) == 0);
  CHECK(misses([&] { torch::cat({x, x}); }) == 1);
  CHECK(misses([&] { torch::cat({x, x, x}); }) == 1);
  CHECK(misses([&] { torch::cat({x, x}); }) == 0);
  cache.freeze();
  CHECK_THAT(testing::error_text([&] { x.sin(); }), Catch::Contains("aten::sin"));
  cache.freeze(false);
  CHECK(misses([&] { x.sin(); }) == 1);
}

TEST_CASE("dispatch: storage access is an error with an explanation") {
  const auto x = distribute_tensor(torch::ones({4, 6}), mesh4(), {Shard(0)});
  CHECK_THAT(testing::error_text([&] { x.storage(); }), Catch::Contains("dtensor::full_tensor"));
}

TEST_CASE("dispatch: factories make replicated tensors inside a MeshScope only") {
  const auto mesh = mesh4();
  const auto x = distribute_tensor(torch::ones({4, 4}), mesh, {Shard(0)});
  CHECK_FALSE(is_dtensor(torch::arange(4)));
  {
    MeshScope scope(mesh);
    CHECK(is_dtensor(torch::arange(4)));
    CHECK(is_dtensor(torch::zeros({2, 2})));
    const auto mask = torch::full({4, 4}, -INFINITY).triu(1);
    const auto weights = full_tensor(torch::softmax(x + mask, -1));
    CHECK(weights[1][0].item<float>() == 0.5f);
    CHECK(weights[1][2].item<float>() == 0.0f);
    const auto r = torch::randn({3});
    const auto locals = to_local(r);
    for (const auto& local : locals) CHECK(torch::equal(local, locals[0]));
    CHECK(torch::tensor({1.0, 2.0}).sum().item<double>() == 3.0);
    const auto batch = distribute_tensor(torch::arange(8), mesh, {Shard(0)});
    CHECK(meta_for_read(batch).spec->placements() == Placements{Shard(0)});
    CHECK(full_tensor(batch).sum().item<int64_t>() == 28);
  }
  CHECK_FALSE(is_dtensor(torch::arange(4)));
}

TEST_CASE("full_tensor returns memory of its own") {
  const auto mesh = mesh4();
  const auto r = distribute_tensor(torch::ones({2, 2}), mesh);
  full_tensor(r).zero_();
  for (const auto& local : to_local(r)) CHECK(local.sum().item<float>() == 4);
}

TEST_CASE("dispatch: decisions outlive the tensors while a mesh is alive") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  for (int i = 0; i < 3; ++i) distribute_tensor(torch::ones({4}), mesh, {Shard(0)}).add(1);
  CHECK(strategy_cache(mesh.world()).stats().misses == 1);
}

TEST_CASE("distribute_tensor and from_local reject invalid arguments") {
  const auto mesh = mesh4();
  const auto w = torch::ones({4, 2}).requires_grad_();
  CHECK_THAT(testing::error_text([&] { distribute_tensor(w * 2, mesh, {Shard(0)}); }),
             Catch::Contains("autograd history"));
  CHECK_THAT(testing::error_text([&] {
               distribute_tensor(torch::ones({4}), mesh, {Shard(0), Shard(0)});
             }),
             Catch::Contains("one placement per mesh dim"));
  CHECK_THAT(testing::error_text([&] { distribute_tensor(torch::ones({4}), mesh, {Shard(1)}); }),
             Catch::Contains("Shard") || Catch::Contains("S(1)"));
  CHECK_THAT(testing::error_text([&] { distribute_tensor(torch::ones({4}), mesh, {Shard(0)}, 9); }),
             Catch::Contains("source_rank 9"));
  const auto x = distribute_tensor(torch::ones({4}), mesh, {Shard(0)});
  CHECK_THAT(testing::error_text([&] { distribute_tensor(x, mesh, {Replicate()}); }),
             Catch::Contains("use redistribute"));
  CHECK(distribute_tensor(x, mesh, {Shard(0)}).is_same(x));
  CHECK(distribute_tensor(w, mesh, {Shard(0)}).requires_grad());
  CHECK_THAT(testing::error_text([&] { from_local({torch::ones(1)}, mesh, {Shard(0)}); }),
             Catch::Contains("1 local tensors, but this process owns 4"));
  CHECK_THAT(testing::error_text([&] { from_local({}, mesh, {Shard(0)}); }), Catch::Contains("0 local tensors"));
  const auto t = torch::ones(1);
  CHECK_THAT(testing::error_text([&] {
               from_local({t, t, t, t.to(torch::kDouble)}, mesh, {Shard(0)});
             }),
             Catch::Contains("one dtype"));
  CHECK_THAT(testing::error_text([&] {
               from_local({t, t, torch::ones(2), t}, mesh, {Shard(0)});
             }),
             Catch::Contains("chunk rule"));
  CHECK_THAT(testing::error_text([&] {
               from_local({t, t, t * 2, t}, mesh, {Replicate()}, {std::nullopt, true, std::nullopt});
             }),
             Catch::Contains("ranks 0 and 2 hold different values"));
  CHECK_THAT(testing::error_text([&] { redistribute(t, {Shard(0)}); }), Catch::Contains("not distributed"));
}

}  // namespace dtensor
