// Gradients that reach parameters through casts and elementwise operators are reduced there, together.
#include <ATen/autocast_mode.h>
#include <torch/nn.h>

#include <functional>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/autocast.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

torch::nn::Sequential make_autocast_model() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 8),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})), torch::nn::Linear(8, 4));
}

Tensor shifted_sines(std::vector<int64_t> sizes, double shift = 0) {
  return (torch::arange(c10::multiply_integers(sizes), torch::kDouble) + shift).view(sizes).sin();
}

// Number of collectives in a backward.
std::vector<CommEvent> backward(const Tensor& loss) {
  CommDebugMode comm;
  loss.backward();
  return comm.events();
}

}  // namespace

TEST_CASE("gradient path: autocast under data parallelism reduces all gradients once, in float32") {
  const DeviceMesh mesh = mesh4();
  torch::nn::Sequential model = make_autocast_model(), plain = make_autocast_model();
  distribute_module(*model, mesh);
  const Tensor x = shifted_sines({16, 8}).to(torch::kFloat);
  const auto loss_of = [](torch::nn::Sequential& m, const Tensor& input) {
    const testing::Autocast autocast;
    return m->forward(input).to(torch::kFloat).pow(2).sum();
  };
  const auto events = backward(loss_of(model, distribute_tensor(x, mesh, {Shard(0)})));
  REQUIRE(events.size() == 1);
  CHECK(events[0].cause.op == "gradient");
  loss_of(plain, x).backward();
  const auto parameters = model->parameters(), expected = plain->parameters();
  int64_t elements = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    CHECK(parameters[i].grad().scalar_type() == torch::kFloat);
    CHECK(torch::allclose(full_tensor(parameters[i].grad()), expected[i].grad(), 0.05, 0.05));
    elements += parameters[i].numel();
  }
  CHECK(events[0].bytes == 2 * 4 * elements * 3 / 4);
}

TEST_CASE("gradient path: casts of one activation under tensor parallelism are reduced once") {
  const DeviceMesh mesh = mesh4();
  const Tensor x0 = shifted_sines({6, 8}).to(torch::kFloat);
  const auto run = [&](const Tensor& x, const Tensors& weights) {
    Tensor h = x.tanh(), sum;
    for (const Tensor& w : weights) {  // column-parallel, on one activation
      const Tensor y = h.to(torch::kBFloat16).mm(w.to(torch::kBFloat16)).to(torch::kFloat).pow(2).sum();
      sum = sum.defined() ? sum + y : y;
    }
    return sum;
  };
  Tensors plain, split;
  for (int i = 0; i < 3; ++i) {
    plain.push_back(shifted_sines({8, 8}, i).to(torch::kFloat).requires_grad_());
    split.push_back(leaf(plain.back(), mesh, {Shard(1)}));
  }
  const Tensor x = leaf(x0, mesh, {Replicate()}), xp = x0.clone().requires_grad_();
  CHECK(backward(run(x, split)).size() == 1);
  run(xp, plain).backward();
  CHECK(torch::allclose(full_tensor(x.grad()), xp.grad(), 0.05, 0.05));
  for (int i = 0; i < 3; ++i) CHECK(torch::allclose(full_tensor(split[i].grad()), plain[i].grad(), 0.05, 0.05));
}

TEST_CASE("gradient path: weights computed from parameters are reduced at the parameters in one collective") {
  const DeviceMesh mesh = mesh4();
  using Make = std::function<Tensor(const Tensor& v, const Tensor& g)>;
  const std::vector<std::pair<const char*, Make>> makes = {
      {"weight norm", [](const Tensor& v, const Tensor& g) { return g * v / v.norm(2, 1, true); }},
      {"exponential", [](const Tensor& v, const Tensor&) { return v.exp(); }},
      {"mask", [](const Tensor& v, const Tensor&) { return v * torch::ones_like(v).tril(); }},
      {"scale", [](const Tensor& v, const Tensor& g) { return v * g.exp(); }},
      {"positive", [](const Tensor& v, const Tensor&) { return torch::softplus(v); }},
      {"fused weight norm", [](const Tensor& v, const Tensor& g) { return at::_weight_norm(v, g, 0); }},
      {"triangles", [](const Tensor& v, const Tensor& g) { return v.tril() + torch::diag_embed(g.squeeze(1).exp()); }},
      {"probabilities", [](const Tensor& v, const Tensor& g) { return v.softmax(1) * g.sigmoid(); }},
  };
  for (const auto& [name, make] : makes) {
    CAPTURE(name);
    Tensors plain, split;
    Tensor y0 = shifted_sines({8, 16}), y = distribute_tensor(y0, mesh, {Shard(0)});
    int64_t elements = 0;
    for (int i = 0; i < 3; ++i) {
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{16, 16}, {16, 1}}) {
        plain.push_back(shifted_sines(sizes, i).requires_grad_());
        split.push_back(leaf(plain.back(), mesh, {Replicate()}));
      }
      const size_t v = plain.size() - 2, g = plain.size() - 1;
      y0 = y0.mm(make(plain[v], plain[g])).tanh();
      y = y.mm(make(split[v], split[g])).tanh();
    }
    y0.pow(2).sum().backward();
    const auto events = backward(y.pow(2).sum());
    for (size_t i = 0; i < plain.size(); ++i) {
      CHECK(plain[i].grad().defined() == split[i].grad().defined());
      if (!plain[i].grad().defined()) continue;
      CHECK(same(split[i].grad(), plain[i].grad()));
      CHECK(DTensor(split[i].grad()).placements() == Placements{Replicate()});
      elements += plain[i].numel();
    }
    REQUIRE(events.size() == 1);
    CHECK(events[0].bytes == 2 * 8 * elements * 3 / 4);
  }
}

TEST_CASE("gradient path: a gradient that is smaller than its parameter's is reduced first") {
  const DeviceMesh mesh = mesh4();
  const Tensor w0 = shifted_sines({64, 64}), x0 = shifted_sines({8, 1});
  const auto run = [](const Tensor& w, const Tensor& x) { return (x * (w.pow(2).sum() / 4096)).tanh().sum(); };
  const Tensor w = leaf(w0, mesh, {Replicate()}), plain = w0.clone().requires_grad_();
  const auto events = backward(run(w, distribute_tensor(x0, mesh, {Shard(0)})));
  run(plain, x0).backward();
  CHECK(same(w.grad(), plain.grad()));
  REQUIRE(events.size() == 1);
  CHECK(events[0].bytes < 100);
}

TEST_CASE("gradient path: gradients of a parameter used in a loop are added before they are reduced") {
  const DeviceMesh mesh = mesh4();
  const Tensor w0 = shifted_sines({12, 12}), b0 = shifted_sines({12}), x0 = shifted_sines({256, 12});
  const auto run = [](Tensor x, const Tensor& w, const Tensor& b) {
    for (int step = 0; step < 28; ++step) x = torch::tanh(torch::linear(x, w, b));
    return x.pow(2).sum();
  };
  const Tensor wp = w0.clone().requires_grad_(), bp = b0.clone().requires_grad_();
  run(x0, wp, bp).backward();
  const Tensor w = leaf(w0, mesh, {Replicate()}), b = leaf(b0, mesh, {Replicate()});
  CHECK(backward(run(distribute_tensor(x0, mesh, {Shard(0)}), w, b)).size() == 1);
  CHECK(same(w.grad(), wp.grad()));
  CHECK(same(b.grad(), bp.grad()));
}

}  // namespace dtensor
