// Composite operators make plain tensors themselves next to distributed ones; the user's plain tensors are still an
// error.
#include <torch/nn.h>
#include <torch/torch.h>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/step_decider.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/error_text.h"

namespace dtensor::testing {
namespace {

using torch::Tensor;

struct Composite {
  const char* name;
  std::function<Tensor(const Tensor&)> f;
  Tensor input;
};

std::vector<Composite> composites() {
  namespace F = torch::nn::functional;
  const auto d = torch::kDouble;
  const auto causal = [](const Tensor& t) {
    return torch::scaled_dot_product_attention(t, t, t, {}, 0., /*is_causal=*/true);
  };
  const auto mask = [](const Tensor& t) {
    return torch::scaled_dot_product_attention(t, t, t, t.matmul(t.transpose(-1, -2)).gt(0.3));
  };
  return {
      {"quantile", [](const Tensor& t) { return torch::quantile(t, 0.3, 1); }, torch::rand({5, 6}, d)},
      {"quantile of all", [](const Tensor& t) { return torch::quantile(t, 0.45); }, torch::rand({5, 6}, d)},
      {"quantile of all, dims kept", [](const Tensor& t) { return torch::quantile(t, 1., {}, true, "higher"); },
       torch::rand({5, 6}, d)},
      {"quantile of columns", [](const Tensor& t) { return torch::quantile(t, 0.6, 0, false, "midpoint"); },
       torch::rand({5, 6, 2}, d)},
      {"quantile of columns, dims kept", [](const Tensor& t) { return torch::quantile(t, 0.6, 1, true, "nearest"); },
       torch::rand({5, 6, 2}, d)},
      {"quantile of one number", [](const Tensor& t) { return torch::quantile(t.sum(), 0.6, 0, false, "lower"); },
       torch::rand({5}, d)},
      {"several quantiles", [](const Tensor& t) { return torch::quantile(t, t.detach().flatten().slice(0, 0, 3)); },
       torch::rand({5, 6}, d)},
      {"several quantiles of rows",
       [](const Tensor& t) { return torch::quantile(t, t.detach().flatten().slice(0, 0, 3), 1, true); },
       torch::rand({5, 6}, d)},
      {"nanquantile beside nan",
       [](const Tensor& t) { return torch::nanquantile(t.detach().masked_fill(t.detach() > 0.6, NAN), 0.5, 0); },
       torch::rand({5, 6}, d)},
      {"quantile of nan",
       [](const Tensor& t) { return torch::quantile(t.detach().masked_fill(t.detach() > 0.9, NAN), 0.5, 0).isnan(); },
       torch::rand({5, 6}, d)},
      {"nanquantile", [](const Tensor& t) { return torch::nanquantile(t, 0.7, 0, true); }, torch::rand({5, 6}, d)},
      {"matrix_power", [](const Tensor& t) { return torch::linalg_matrix_power(t, 3); }, torch::rand({4, 4}, d)},
      {"matrix_power of 0", [](const Tensor& t) { return torch::linalg_matrix_power(t, 0); }, torch::rand({4, 4}, d)},
      {"one_hot", [](const Tensor& t) { return torch::one_hot(t); }, torch::randint(7, {5, 2})},
      {"one_hot of 9", [](const Tensor& t) { return torch::one_hot(t, 9); }, torch::randint(7, {5})},
      {"combinations", [](const Tensor& t) { return torch::combinations(t, 2); }, torch::rand({5}, d)},
      {"cov", [](const Tensor& t) { return torch::cov(t); }, torch::rand({4, 6}, d)},
      {"corrcoef", [](const Tensor& t) { return torch::corrcoef(t); }, torch::rand({4, 6}, d)},
      {"trapezoid", [](const Tensor& t) { return torch::trapezoid(t, 1.0, 0); }, torch::rand({4, 6}, d)},
      {"causal attention", causal, torch::rand({2, 2, 5, 4}, d)},
      {"causal attention of 3 dims", causal, torch::rand({2, 5, 4}, d)},
      {"masked attention", mask, torch::rand({2, 2, 5, 4}, d)},
      {"cosine_embedding_loss",
       [](const Tensor& t) { return torch::cosine_embedding_loss(t, t.roll(1, 0), t.select(1, 0).gt(0.5) * 2. - 1.); },
       torch::rand({5, 6}, d)},
      {"triplet_margin_loss", [](const Tensor& t) { return torch::triplet_margin_loss(t, t.roll(1, 0), t.roll(2, 0)); },
       torch::rand({5, 6}, d)},
      {"diff", [](const Tensor& t) { return torch::diff(t, 1, 0); }, torch::rand({5, 6}, d)},
      {"vander", [](const Tensor& t) { return torch::vander(t.detach()); }, torch::rand({5}, d)},
      {"vander of 3, increasing", [](const Tensor& t) { return torch::vander(t.detach(), 3, true); },
       torch::rand({5}, d)},
      {"vander of 1", [](const Tensor& t) { return torch::vander(t.detach(), 1); }, torch::rand({5}, d)},
      {"linalg_vander", [](const Tensor& t) { return torch::linalg_vander(t, 4); }, torch::rand({2, 3}, d)},
      {"tensor_split", [](const Tensor& t) { return torch::tensor_split(t, 2, 0)[1] * 1; }, torch::rand({5, 6}, d)},
  };
}

// Counts the calls that it is asked to decide.
struct CountedCalls final : internal::StepDecider {
  int64_t announced = 0, decided = 0;
  void next() override { ++announced; }
  std::shared_ptr<const Decision> decide(const OpCall&, const std::shared_ptr<const OpRule>&,
                                         const std::function<std::shared_ptr<const Decision>()>& usual) override {
    ++decided;
    return usual();
  }
};

TEST_CASE("The operators of linear are decided one by one in inference mode, whatever the sizes of shards",
          "[dtensor][composites]") {
  const DeviceMesh mesh(World::local(2), {2});
  for (const int64_t batch : {4, 5}) {
    INFO("batch of " << batch);
    const c10::InferenceMode inference;
    const Tensor x = distribute_tensor(torch::rand({batch, 3, 4}), mesh, {Shard(0)});
    const Tensor w = distribute_tensor(torch::rand({6, 4}), mesh, {Replicate()}), columns = w.t();
    for (const auto& product : {std::function<Tensor()>([&] { return torch::linear(x, w); }),
                                std::function<Tensor()>([&] { return torch::matmul(x, columns); })}) {
      CountedCalls calls;
      const internal::DispatchScopeGuard deciding([&](internal::DispatchScope& s) { s.step_decider = &calls; });
      product();
      CHECK(calls.decided > 0);
      CHECK(calls.announced >= calls.decided);
    }
  }
}

}  // namespace

TEST_CASE("composites: plain tensors made inside count as replicated without a scope") {
  torch::manual_seed(3);
  for (const Composite& c : composites()) {
    const bool differentiable = c.input.is_floating_point();
    auto plain = c.input.clone();
    if (differentiable) plain.requires_grad_();
    const Tensor expected = c.f(plain);
    if (expected.requires_grad()) (expected * expected).sum().backward();
    for (const DeviceMesh& mesh : {DeviceMesh(World::local(2), {2}), DeviceMesh(World::local(4), {2, 2})}) {
      for (const Placement& first : {Replicate(), Shard(0), Shard(c.input.dim() - 1)}) {
        Placements placements(mesh.ndim(), Replicate());
        placements[0] = first;
        CAPTURE(c.name, to_string(placements));
        auto x = distribute_tensor(c.input, mesh, placements);
        if (differentiable) x.requires_grad_();
        Tensor y;
        REQUIRE_NOTHROW(y = c.f(x));
        REQUIRE(is_dtensor(y));
        CHECK(torch::allclose(full_tensor(y.detach()), expected.detach(), 1e-9, 1e-12));
        if (!expected.requires_grad()) continue;
        REQUIRE_NOTHROW((y * y).sum().backward());
        CHECK(torch::allclose(full_tensor(x.grad()), plain.grad(), 1e-8, 1e-10));
      }
    }
  }
}

TEST_CASE("composites: a plain tensor of the user is an error") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto x = distribute_tensor(torch::rand({4, 6}), mesh, {Shard(0)});
  CHECK_THROWS_WITH(torch::quantile(x, torch::rand({2}), 1),
                    Catch::Contains("(called by aten::quantile): argument 'self' is a plain tensor of shape"));
  CHECK_THROWS_WITH(torch::cosine_embedding_loss(x, torch::rand({4, 6}), torch::ones({4})),
                    Catch::Contains("is a plain tensor"));
  CHECK_THROWS_WITH(torch::scaled_dot_product_attention(x, torch::rand({4, 6}), x),
                    Catch::Contains("is a plain tensor"));
  for (const double q : {-0.1, 1.1}) {
    const auto outside = distribute_tensor(torch::full({1}, q), mesh, {Replicate()});
    CHECK_THROWS_WITH(torch::quantile(x, outside, 1), Catch::Contains("in the range [0, 1]"));
    CHECK_THROWS_WITH(torch::nanquantile(x, outside, 1), Catch::Contains("in the range [0, 1]"));
    CHECK_THROWS_WITH(torch::quantile(x, q, 1), Catch::Contains("in the range [0, 1]"));
  }
}

// ATen's own vander() has no gradient for more than two columns.
TEST_CASE("composites: gradients of vander") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto full = torch::rand({5}, torch::kDouble);
  for (const bool increasing : {true, false}) {
    auto plain = full.clone().requires_grad_();
    const auto powers = torch::linalg_vander(plain, 4);
    const auto expected = increasing ? powers : powers.flip(1);
    expected.square().sum().backward();
    auto x = distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
    const auto y = torch::vander(x, 4, increasing);
    CHECK(torch::allclose(full_tensor(y.detach()), expected.detach()));
    y.square().sum().backward();
    CHECK(torch::allclose(full_tensor(x.grad()), plain.grad()));
  }
}

TEST_CASE("composites: operators that read a tensor's numbers") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto full = torch::rand({6, 4}, torch::kDouble);
  const auto x = distribute_tensor(full, mesh, {Shard(0)});
  const auto places = torch::tensor({1, 3, 5});
  for (const Placement& p : {Replicate(), Shard(0)}) {
    const auto parts = torch::tensor_split(x, distribute_tensor(places, mesh, {p}), 0),
               expected = torch::tensor_split(full, places, 0);
    REQUIRE(parts.size() == expected.size());
    for (size_t k = 0; k < parts.size(); ++k) CHECK(torch::equal(full_tensor(parts[k]), expected[k]));
    const auto numbers = torch::tensor({2., 3., 5.}, torch::kDouble);
    std::vector<Tensor> a, b, c, plain;
    for (int k = 0; k < 3; ++k) {
      a.push_back(distribute_tensor(full + k, mesh, {Shard(k % 2)}));
      plain.push_back(full + k);
    }
    const auto sums = torch::_foreach_addcmul(a, a, a, distribute_tensor(numbers, mesh, {p})),
               quotients = torch::_foreach_addcdiv(a, a, a, distribute_tensor(numbers, mesh, {p}));
    const auto plain_sums = torch::_foreach_addcmul(plain, plain, plain, numbers),
               plain_quotients = torch::_foreach_addcdiv(plain, plain, plain, numbers);
    for (int k = 0; k < 3; ++k) {
      CHECK(torch::allclose(full_tensor(sums[k]), plain_sums[k]));
      CHECK(torch::allclose(full_tensor(quotients[k]), plain_quotients[k]));
    }
  }
}

TEST_CASE("composites: max_pool1d of replicated tensors, with and without gradient") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto full = torch::rand({2, 3, 8}, torch::kDouble);
  auto x = distribute_tensor(full, mesh, {Replicate()});
  CHECK(torch::equal(full_tensor(torch::max_pool1d(x, 3, 2)), torch::max_pool1d(full, 3, 2)));
  auto plain = full.clone().requires_grad_();
  x.requires_grad_();
  torch::max_pool1d(plain, 3, 2).sum().backward();
  torch::max_pool1d(x, 3, 2).sum().backward();
  CHECK(torch::equal(full_tensor(x.grad()), plain.grad()));
}

TEST_CASE("composites: factories outside of them make plain tensors, before and after") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto x = distribute_tensor(torch::rand({4, 4}), mesh, {Shard(0)});
  torch::linalg_matrix_power(x, 2);
  CHECK_FALSE(is_dtensor(torch::zeros({2})));
  CHECK_THROWS(torch::quantile(x, 7.0, 1));  // an error leaves no state behind
  CHECK_FALSE(is_dtensor(torch::zeros({2})));
  CHECK_THROWS(x + torch::ones({4, 4}));
}

// A hook inside a formula counts as the formula's code, too.
TEST_CASE("composites: reducing a Partial in place does not depend on live views") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  enum class Viewed { kNever, kBefore, kNow };
  for (const Viewed viewed : {Viewed::kNever, Viewed::kBefore, Viewed::kNow}) {
    const Tensor x = distribute_tensor(torch::ones({4, 3}), mesh, {Shard(0)}).requires_grad_();
    std::string text;
    Tensor clamped;
    x.register_hook([&](const Tensor&) {
      torch::NoGradGuard no_grad;
      Tensor sum = distribute_tensor(torch::full({4, 3}, -1.), mesh, {Shard(0)}).sum(0), view;
      if (viewed != Viewed::kNever) view = sum.view({3, 1});
      if (viewed == Viewed::kBefore) view.reset();
      text = error_text([&] { sum.clamp_min_(2); });
      clamped = sum;
    });
    x.sum().backward();
    INFO(text);
    if (viewed == Viewed::kNever) {
      CHECK(text.empty());
      CHECK(torch::equal(full_tensor(clamped), torch::full({3}, 2.)));
    } else {
      CHECK_THAT(text, Catch::Contains("in-place operations that require placement changes"));
    }
  }
}

TEST_CASE("composites: a plain tensor of one element counts as a number") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto full = torch::rand({4, 4}, torch::kDouble);
  const auto x = distribute_tensor(full, mesh, {Shard(0)});
  const auto one = torch::full({1, 1}, 3., torch::kDouble);
  CHECK(torch::equal(full_tensor(x * one), full * 3));
  CHECK_THROWS(x * torch::full({1, 4}, 3., torch::kDouble));
}

}  // namespace dtensor::testing
