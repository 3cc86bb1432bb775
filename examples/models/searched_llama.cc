#include "examples/models/searched_llama.h"

#include <memory>
#include <utility>

#include "dtensor/activation_checkpoint.h"

namespace examples {

using dtensor::ModelChoice;
using dtensor::ModelWithLoss;
using torch::Tensor;

Tensor through_layers(const ModelChoice& choice, size_t layers, Tensor x,
                      const std::function<Tensor(size_t, const Tensor&)>& layer) {
  bool again = false;
  for (const auto& [name, value] : choice.settings) again = again || (name == "checkpoint" && value == 1);
  for (size_t i = 0; i < layers; ++i) {
    const auto run = [=](const Tensor& t) { return layer(i, t); };
    x = again ? dtensor::checkpoint(run, x) : run(x);
  }
  return x;
}

dtensor::MakeModel searched_llama(const LlamaConfig& config) {
  return [config](const ModelChoice& choice) -> ModelWithLoss {
    LlamaConfig chosen = config;
    chosen.fused_attention = true;
    if (choice.layers > 0) chosen.layers = choice.layers;
    const auto model = std::make_shared<LlamaImpl>(chosen);
    model->to(torch::kBFloat16);
    return {model, [model, choice](const std::vector<Tensor>& in) {
              const auto block = [model](size_t i, const Tensor& x) { return model->run_blocks(x, i, i + 1); };
              const Tensor x = through_layers(choice, model->blocks->size(), model->tokens(in[0]), block);
              const Tensor scores = model->head(model->norm(x));
              return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), in[1].view({-1}));
            }};
  };
}

std::vector<Tensor> token_ids(int64_t batch, int64_t length) {
  return std::vector<Tensor>(2, torch::empty({batch, length}, torch::device(at::kMeta).dtype(torch::kLong)));
}

Tensor between_layers(const LlamaConfig& config, int64_t batch, int64_t length) {
  return torch::empty({batch, length, config.width}, torch::device(at::kMeta).dtype(torch::kBFloat16));
}

}  // namespace examples
