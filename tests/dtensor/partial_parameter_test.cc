// A Partial tensor that becomes a parameter is reduced by the first operator that takes it, and then behaves like
// others.
#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <memory>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

// A tensor split over the dim of the norm.
Tensor norms(const Tensor& t) { return t.norm(2, 1); }

Tensor numbers() { return torch::arange(40, torch::kDouble).view({5, 8}).cos(); }

}  // namespace

TEST_CASE("partial parameter: a leaf made of a Partial result trains as on one device") {
  const DeviceMesh mesh = mesh4();
  using Make = std::function<Tensor(const Tensor&)>;
  const std::vector<Make> makes = {
      [](const Tensor& t) { return norms(t).detach().requires_grad_(); },
      [](const Tensor& t) { return t.sum(1).requires_grad_(); },
      [](const Tensor& t) { return t.amax(1).detach().requires_grad_(); },
      [](const Tensor& t) { return t.prod(1).requires_grad_(); },
      [](const Tensor& t) {
        Tensor p = torch::zeros({5}, torch::kDouble).requires_grad_();
        p.set_data(norms(t));
        return p;
      },
  };
  using Optimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<Tensor>&)>;
  const std::vector<Optimizer> optimizers = {
      [](const auto& ps) {
        return std::make_unique<torch::optim::SGD>(ps, torch::optim::SGDOptions(0.1).momentum(0.9));
      },
      [](const auto& ps) { return std::make_unique<torch::optim::AdamW>(ps, torch::optim::AdamWOptions(0.1)); },
  };
  for (size_t m = 0; m < makes.size(); ++m) {
    for (const Optimizer& make_optimizer : optimizers) {
      CAPTURE(m);
      const Tensor p = makes[m](distribute_tensor(numbers(), mesh, {Shard(1)})), plain = makes[m](numbers());
      REQUIRE(DTensor(p).spec().has_partial());
      const auto optimizer = make_optimizer({p}), plain_optimizer = make_optimizer({plain});
      CommDebugMode comm;
      for (int step = 0; step < 3; ++step) {
        (p * p * 0.5).sum().backward();
        (p.sin()).sum().backward();
        (plain * plain * 0.5).sum().backward();
        (plain.sin()).sum().backward();
        CHECK(torch::nn::utils::clip_grad_norm_({p}, 0.5) == Approx(torch::nn::utils::clip_grad_norm_({plain}, 0.5)));
        optimizer->step();
        plain_optimizer->step();
        optimizer->zero_grad(/*set_to_none=*/step == 0);
        plain_optimizer->zero_grad(/*set_to_none=*/step == 0);
      }
      CHECK(comm.total() == 1);
      CHECK(DTensor(p).placements() == Placements{Replicate()});
      CHECK(same(p, plain));
    }
  }
}

TEST_CASE("partial parameter: weight norm over a split dim, with a gain initialised from norms") {
  const DeviceMesh mesh = mesh4();
  const auto run = [](const Tensor& weight, const Tensor& x) {
    const Tensor v = weight.detach().clone().requires_grad_(),
                 g = torch::norm_except_dim(weight, 2, 0).detach().requires_grad_();
    torch::optim::SGD optimizer({v, g}, 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      x.mm(torch::_weight_norm(v, g, 0).t()).tanh().pow(2).sum().backward();
      optimizer.step();
    }
    return std::vector<Tensor>{v, g};
  };
  const Tensor x = torch::arange(24, torch::kDouble).view({3, 8}).sin();
  const auto expected = run(numbers(), x);
  const auto actual = run(distribute_tensor(numbers(), mesh, {Shard(1)}), distribute_tensor(x, mesh, {Replicate()}));
  for (size_t i = 0; i < expected.size(); ++i) CHECK(same(actual[i], expected[i]));
  CHECK_FALSE(DTensor(actual[1]).spec().has_partial());
}

TEST_CASE("partial parameter: a layout chosen by the user stays") {
  const DeviceMesh mesh = mesh4();
  const Tensor p = distribute_tensor(numbers(), mesh, {Partial()}).requires_grad_();
  CommDebugMode comm;
  (p * 2).sum();
  CHECK(comm.total() == 0);
  CHECK(DTensor(p).placements() == Placements{Partial()});
}

TEST_CASE("partial parameter: reading it before any operator does not communicate") {
  const DeviceMesh mesh = mesh4();
  const Tensor p = norms(distribute_tensor(numbers(), mesh, {Shard(1)})).detach().requires_grad_();
  CommDebugMode comm;
  CHECK(DTensor(p).local(0).sizes() == c10::IntArrayRef{5});
  CHECK(DTensor(p.detach()).spec().has_partial());
  CHECK(comm.total() == 0);
}

}  // namespace dtensor
