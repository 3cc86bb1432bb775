// Distributions whose parameters are tensors: the same values on every mesh and in every layout, with the right
// moments.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/_standard_gamma.h>
#include <ATen/ops/binomial.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/poisson.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rrelu.h>
#include <ATen/ops/rrelu_with_noise.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GeneratorImpl.h>

#include <cmath>
#include <functional>
#include <vector>

#include "dtensor/dispatch/internal/rewind_generator.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Draw = std::function<at::Tensor(const at::Tensor&)>;

struct Distribution {
  const char* name;
  Draw draw;
  std::function<double(double)> mean, variance;  // of the parameter
};

at::Tensor successes(const at::Tensor& p) { return at::binomial(at::zeros_like(p) + 20, p); }

const std::vector<Distribution>& distributions() {
  static const auto* const all = new std::vector<Distribution>{
      {"poisson", [](auto& t) { return at::poisson(t * 9); }, [](double x) { return 9 * x; },
       [](double x) { return 9 * x; }},
      {"poisson, many", [](auto& t) { return at::poisson(t * 300); }, [](double x) { return 300 * x; },
       [](double x) { return 300 * x; }},
      {"gamma", [](auto& t) { return at::_standard_gamma(t * 2); }, [](double x) { return 2 * x; },
       [](double x) { return 2 * x; }},
      {"binomial", successes, [](double x) { return 20 * x; }, [](double x) { return 20 * x * (1 - x); }},
      // Of three equal shapes each.
      {"dirichlet", [](auto& t) { return at::_sample_dirichlet(t); }, [](double) { return 1.0 / 3; },
       [](double x) { return 2.0 / 9 / (3 * x + 1); }},
      {"rrelu", [](auto& t) { return at::rrelu(-t, 0.2, 0.6, /*training=*/true); }, [](double x) { return -0.4 * x; },
       [](double x) { return x * x * 0.4 * 0.4 / 12; }},
  };
  return *all;
}

TEST_CASE("Random distributions: values depend only on seed and place", "[random]") {
  const at::Tensor parameter = at::rand({5, 3}, at::kDouble).mul(0.8).add(0.1);
  for (const Distribution& d : distributions()) {
    at::Tensor first;
    for (const DeviceMesh& mesh : test_meshes()) {
      for (const Placement& p : {Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial()}) {
        CAPTURE(d.name, p, mesh.to_string());
        Placements layout(mesh.ndim(), Replicate());
        layout.back() = p;
        at::manual_seed(4);
        const at::Tensor x = d.draw(lay_out(parameter, mesh, layout));
        if (!p.is_partial() && std::string(d.name) != "dirichlet") CHECK(spec_of(x)->placements().back() == p);
        for (const at::Tensor& local : p == Replicate() ? meta_for_read(x).locals : RankTensors())
          CHECK(local.equal(meta_for_read(x).locals[0]));
        if (!first.defined()) first = full_tensor(x);
        CHECK(full_tensor(x).allclose(first, 1e-12, 1e-12));
        at::manual_seed(5);
        CHECK_FALSE(full_tensor(d.draw(lay_out(parameter, mesh, layout))).allclose(first));
      }
    }
  }
}

TEST_CASE("Random distributions: means and variances are right", "[random]") {
  constexpr int64_t kCount = 30000;
  at::manual_seed(11);
  for (const Distribution& d : distributions()) {
    for (const double x : {0.05, 0.3, 0.9}) {
      CAPTURE(d.name, x);
      const at::Tensor sample =
          full_tensor(d.draw(lay_out(at::full({kCount, 3}, x, at::kDouble), test_meshes()[0], {Shard(0)})));
      const double mean = d.mean(x), variance = d.variance(x), n = 3.0 * kCount;
      CHECK(std::abs(sample.mean().item<double>() - mean) < 5 * std::sqrt(variance / n) + 1e-9);
      CHECK(std::abs(sample.var().item<double>() / variance - 1) < 0.15);
    }
  }
}

TEST_CASE("rrelu: the gradient uses the noise of forward", "[random]") {
  for (const Placement& p : {Replicate(), Shard(0), Partial()}) {
    CAPTURE(p);
    const at::Tensor value = at::rand({6, 5}, at::kDouble).sub(0.5);
    const at::Tensor x = lay_out(value, test_meshes()[0], {p}).requires_grad_();
    at::Tensor noise = at::zeros_like(x.detach());
    const at::Tensor y = at::rrelu_with_noise(x, noise, 0.1, 0.4, /*training=*/true);
    y.sum().backward();
    const at::Tensor slope = full_tensor(noise);
    CHECK(slope.masked_select(value > 0).eq(1).all().item<bool>());
    CHECK(slope.masked_select(value <= 0).ge(0.1).all().item<bool>());
    CHECK(slope.masked_select(value <= 0).lt(0.4).all().item<bool>());
    CHECK(full_tensor(x.grad()).allclose(slope));
    CHECK(full_tensor(y.detach()).allclose(value * slope));
    // In evaluation there is one slope.
    CHECK(full_tensor(at::rrelu(x.detach(), 0.1, 0.4)).allclose(at::rrelu(value, 0.1, 0.4)));
  }
}

TEST_CASE("Random distributions: a filled Partial reduces to the whole tensor's values", "[random]") {
  for (const DeviceMesh& mesh : test_meshes()) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
      CAPTURE(mesh.to_string(), op);
      const at::Tensor zeros = at::zeros({5, 3}, at::kDouble);
      Placements whole(mesh.ndim(), Replicate()), partial = whole;
      partial.back() = Partial(op);
      const at::Tensor probability = lay_out(at::full({5, 3}, 0.4, at::kDouble), mesh, whole);
      std::vector<std::vector<at::Tensor>> filled;
      for (const Placements& layout : {whole, partial}) {
        at::manual_seed(2);
        const at::Tensor a = lay_out(at::ones_like(zeros), mesh, layout).normal_(1, 2),
                         b = lay_out(at::ones_like(zeros), mesh, layout).bernoulli_(probability);
        CHECK(spec_of(a)->placements() == layout);
        filled.push_back({full_tensor(a), full_tensor(b)});
      }
      CHECK(filled[0][0].allclose(filled[1][0]));
      CHECK(filled[0][1].allclose(filled[1][1]));
    }
  }
}

TEST_CASE("Gradients of gammas, and rejected arguments of distributions", "[random]") {
  OpCase gamma{"_standard_gamma_grad", [](auto& t) {
                 return call_op("aten::_standard_gamma_grad", {t[0].detach(), t[1].detach()});
               }};
  OpCase dirichlet{"_dirichlet_grad", [](auto& t) {
                     return call_op("aten::_dirichlet_grad", {t[0].detach(), t[1].detach(), t[2].detach()});
                   }};
  gamma.shapes = {{5, 3}, {5, 3}};
  dirichlet.shapes = {{5, 3}, {5, 3}, {5, 3}};
  for (OpCase* c : {&gamma, &dirichlet}) {
    c->make = [](size_t i, const auto& shape) {
      return at::rand(shape, at::kDouble).mul(0.2).add(0.3 + 0.5 * static_cast<double>(i));
    };
    c->grad.assign(c->shapes.size(), false);
    check_op(*c, 30);
  }
  const auto negative = lay_out(at::full({4}, -1, at::kDouble), test_meshes()[0], {Shard(0)});
  CHECK_THROWS_WITH(at::poisson(negative), Catch::Contains("non-negative"));
  CHECK_THROWS_AS(at::poisson(lay_out(at::full({4}, 1, at::kLong), test_meshes()[0], {Shard(0)})),
                  c10::NotImplementedError);

  // An abstract world draws nothing.
  const DeviceMesh nowhere(World::abstract(4), {4});
  FromLocalOptions options;
  options.shape = std::vector<int64_t>{8, 3};
  const at::Tensor ghost = at::poisson(from_local({}, nowhere, {Shard(0)}, options));
  CHECK(spec_of(ghost)->placements()[0] == Shard(0));
}

// Counts its draws; of a device that is not the CPU.
struct Counter final : c10::GeneratorImpl {
  explicit Counter(uint64_t drawn) : GeneratorImpl(c10::Device(c10::DeviceType::Meta), {}), draws(drawn) {}

  void set_current_seed(uint64_t) override {}
  void set_offset(uint64_t offset) override { draws = offset; }
  uint64_t get_offset() const override { return draws; }
  uint64_t current_seed() const override { return 0; }
  uint64_t seed() override { return 0; }
  void set_state(const c10::TensorImpl& state) override { draws = *static_cast<const uint64_t*>(state.data()); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return at::full({}, static_cast<int64_t>(draws), at::kLong).getIntrusivePtr();
  }
  GeneratorImpl* clone_impl() const override { return new Counter(draws); }

  uint64_t draws;
};

TEST_CASE("ranks draw the same from a generator of a device, which advances once") {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::bernoulli", "");
  const at::Generator given = at::make_generator<Counter>(0);
  std::vector<uint64_t> draws;
  const auto call_on_ranks = [&] {
    RewindGenerator same;
    for (int rank = 0; rank < 2; ++rank) {
      torch::jit::Stack stack = {at::full({2}, 0.5), given};
      same.run(op, c10::Device(c10::DeviceType::CPU), stack,
               [&] { draws.push_back(stack[1].toGenerator().get<Counter>()->draws++); });
    }
  };
  call_on_ranks();
  call_on_ranks();
  CHECK(draws == std::vector<uint64_t>{0, 0, 1, 1});
  CHECK(given.get<Counter>()->draws == 2);
}

}  // namespace
}  // namespace dtensor::testing
