// Every parameter in parts over the ranks that share the batch.
#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
#include "examples/models/llama.h"

namespace dtensor::benchmarks {
namespace {

constexpr int64_t kLayers = 8;

// Every parameter is gathered once in each direction, every gradient reduced once to the part that stays.
Pattern fully_sharded(const DeviceMesh& mesh, torch::nn::Module& model, std::function<at::Tensor()> loss) {
  Traffic gathers, reductions;
  for (const auto& p : model.parameters()) {
    const auto bytes = static_cast<double>(DTensor(p).spec().meta().bytes());
    gathers += all_gather(bytes, mesh.size("dp"));
    reductions += reduce_scatter(bytes, mesh.size("dp"));
  }
  Pattern pattern = training(mesh, std::move(loss), gathers + all_reduce(4, mesh.size("dp")), gathers + reductions);
  pattern.bytes_gate = 1.1;
  return pattern;
}

}  // namespace

Pattern fully_sharded_llama(const DeviceMesh& mesh, int64_t scale) {
  examples::LlamaConfig c;
  c.width *= scale;
  c.hidden *= scale;
  c.vocab *= scale;
  c.layers = kLayers;
  examples::Llama model(c);
  distribute_module(*model, mesh, examples::shard_fully);
  const auto ids = zeros({4 * mesh.size("dp"), 16 * scale}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  return fully_sharded(mesh, *model, [model, ids]() mutable {
    const auto scores = model(ids);
    return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), ids.view({-1}));
  });
}

Pattern fully_sharded_perceptron(const DeviceMesh& mesh, int64_t scale) {
  const int64_t width = 64 * scale;
  torch::nn::Sequential model;
  for (int64_t i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    model->push_back(torch::nn::GELU());
  }
  distribute_module(*model, mesh, examples::shard_fully);
  const auto x = randn({64 * scale * mesh.size("dp"), width}, mesh, {Shard(0)});
  return fully_sharded(mesh, *model, [model, x]() mutable { return model->forward(x).square().mean(); });
}

}  // namespace dtensor::benchmarks
