#include "tools/calibrate/operator_step.h"

#include <torch/nn/functional.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "mesh/device_mesh.h"

namespace dtensor::tools {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

constexpr int64_t kHeads = 4;
constexpr int64_t kClasses = 512;
constexpr int64_t kLayers = 4;  // as in a model, most calls are not the first ones of their operator

struct Workload {
  Tensor x;                     // [rows, width], sharded by rows
  Tensor ids;                   // [rows], of classes
  Tensor table;                 // [classes, width]
  Tensor square, wide, narrow;  // [width, width], [width, 4 * width], [4 * width, width]
  Tensor bias, scale;           // [width]
  int64_t sequences = 1;        // rows are so many sequences
  std::vector<Tensor> weights() const { return {table, square, wide, narrow, bias, scale}; }
};

// Operators by element, each of the same tensor.
std::vector<Tensor> pointwise(const Tensor& x) {
  const Tensor positive = x.abs().add(1), half = x.mul(0.5);
  return {positive.log(),
          positive.sqrt(),
          positive.rsqrt(),
          positive.reciprocal(),
          half.exp(),
          half.neg(),
          half.cos(),
          half.sin(),
          half.erf(),
          half.tanh(),
          half.sigmoid(),
          half.relu(),
          F::gelu(half),
          F::silu(half),
          F::softplus(half),
          half.pow(2),
          half.square(),
          half.clamp(-1, 1),
          half.div(3),
          half.sub(1),
          half + positive,
          half - positive,
          half * positive,
          half / positive,
          torch::maximum(half, positive),
          torch::where(half > 0, half, positive),
          half.masked_fill(half < 0, 0),
          1 - half,
          half.to(torch::kDouble).to(torch::kFloat),
          F::dropout(half, F::DropoutFuncOptions().p(0.1).training(true))};
}

// Sums, normalizations and operators that move elements.
std::vector<Tensor> along_rows(const Tensor& x, const Workload& w) {
  const int64_t width = x.size(1);
  std::vector<Tensor> results = {x.sum(1, /*keepdim=*/true),
                                 x.mean(1, /*keepdim=*/true),
                                 x.square().mean(),
                                 x.softmax(1),
                                 x.log_softmax(1),
                                 x.cumsum(1),
                                 F::layer_norm(x, F::LayerNormFuncOptions({width}).weight(w.scale).bias(w.bias)),
                                 x * (x.square().mean(1, /*keepdim=*/true) + 1e-5).rsqrt() * w.scale,
                                 x + w.bias,
                                 torch::cat({x, x}, 1),
                                 x.slice(1, 0, width / 2).contiguous(),
                                 x.flip(1),
                                 torch::stack({x, x}, 1),
                                 F::pad(x, F::PadFuncOptions({1, 1}))};
  const Tensor parts = x.view({w.sequences, -1, kHeads, width / kHeads});
  results.push_back(parts.transpose(1, 2).contiguous());
  results.push_back(parts.transpose(2, 3).reshape({x.size(0), width}));
  for (const Tensor& part : x.chunk(2, 1)) results.push_back(part.mul(2));
  results.push_back(F::embedding(w.ids, w.table));
  results.push_back(F::cross_entropy(x.matmul(w.table.t()), w.ids));
  return results;
}

std::vector<Tensor> products(const Tensor& x, const Workload& w) {
  const auto heads = [&](const Tensor& t) {
    return t.view({w.sequences, -1, kHeads, t.size(1) / kHeads}).transpose(1, 2);
  };
  const Tensor q = heads(x.mm(w.square)), k = heads(F::linear(x, w.square, w.bias)), v = heads(x);
  const Tensor scores = torch::matmul(q, k.transpose(2, 3)).softmax(-1);
  return {torch::matmul(scores, v), at::scaled_dot_product_attention(q, k, v), F::gelu(x.mm(w.wide)).mm(w.narrow)};
}

// What optimizers do to a weight, of which `state` is a state.
void update(const Tensor& weight, const Tensor& grad, const Tensor& state) {
  const torch::NoGradGuard no_grad;
  state.mul_(0.9).add_(grad, 0.1);
  state.lerp_(grad, 0.1);
  state.addcmul_(grad, grad, 0.1);
  weight.addcdiv_(state, state.square().sqrt_().add_(1), -1e-9);
}

}  // namespace

std::function<void()> make_operator_step(const World& world, int64_t bytes, int64_t width) {
  const DeviceMesh mesh(world, {world.size()}, {"all"});
  const Placements rows{Shard(0)}, whole{Replicate()};
  const int64_t rows_of_rank = std::max<int64_t>(1, bytes / (4 * width));
  // Sequences of at most 256, some on each rank.
  int64_t sequences = 1;
  while (rows_of_rank / sequences > 256 && rows_of_rank % (2 * sequences) == 0) sequences *= 2;
  Workload w;
  w.sequences = sequences * world.size();
  w.x = dtensor::full({rows_of_rank * world.size(), width}, 0.5, mesh, rows);
  w.ids = dtensor::zeros({rows_of_rank * world.size()}, mesh, rows, {.dtype = torch::kLong});
  w.table = dtensor::full({kClasses, width}, 0.1, mesh, whole);
  w.square = dtensor::full({width, width}, 0.1, mesh, whole);
  w.wide = dtensor::full({width, 4 * width}, 0.1, mesh, whole);
  w.narrow = dtensor::full({4 * width, width}, 0.1, mesh, whole);
  w.bias = dtensor::full({width}, 0.1, mesh, whole);
  w.scale = dtensor::full({width}, 0.1, mesh, whole);
  std::vector<Tensor> states;
  for (const Tensor& weight : w.weights()) {
    weight.requires_grad_();
    states.push_back(torch::zeros_like(weight));
  }
  return [w, states] {
    Tensor loss = w.bias.sum();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      // Every operator has a weight before it, so that it has a backward.
      const Tensor x = w.x * w.scale;
      for (const auto& results : {pointwise(x), along_rows(x, w), products(x, w)}) {
        for (const Tensor& result : results) loss = loss + result.mean();
      }
    }
    loss.backward();
    const auto weights = w.weights();
    for (size_t i = 0; i < weights.size(); ++i)
      update(weights[i], redistribute(weights[i].grad(), {Replicate()}), states[i]);
  };
}

}  // namespace dtensor::tools
