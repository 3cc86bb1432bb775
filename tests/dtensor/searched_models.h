// A small model and ranks for tests of searches of layouts.
#pragma once

#include <torch/nn.h>

#include <memory>
#include <vector>

#include "dtensor/activation_checkpoint.h"
#include "dtensor/search_module_layouts_options.h"
#include "examples/models/llama.h"
#include "tests/dtensor/parallel_models.h"
#include "tests/dtensor/round_numbers.h"

namespace dtensor::testing {

inline ModelWithLoss make_language_model(const ModelChoice& = {}) {
  auto model = std::make_shared<LanguageModelImpl>(40, 8);
  return {model, [model](const std::vector<Tensor>& inputs) {
            const Tensor scores = model->forward(inputs.at(0));
            return nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), inputs.at(1).view({-1}));
          }};
}

constexpr int64_t kLayers = 5;

// A Llama of choice.layers, or kLayers, whose blocks are computed again in backward if the choice says so.
inline ModelWithLoss make_blocks(const ModelChoice& choice) {
  examples::LlamaConfig config;
  config.vocab = 96, config.width = 32, config.heads = config.kv_heads = 4, config.hidden = 64;
  config.layers = choice.layers == 0 ? kLayers : choice.layers;
  auto model = std::make_shared<examples::LlamaImpl>(config);
  const bool again = !choice.settings.empty() && choice.setting("checkpoint") == 1;
  return {model, [model, again](const std::vector<Tensor>& in) {
            Tensor x = model->tokens(in.at(0));
            for (size_t i = 0; i < model->blocks->size(); ++i) {
              const auto block = [model, i](const Tensor& t) { return model->run_blocks(t, i, i + 1); };
              x = again ? checkpoint(block, x) : block(x);
            }
            const Tensor scores = model->head(model->norm(x));
            return nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), in.at(1).view({-1}));
          }};
}

// Inputs of make_blocks().
inline std::vector<Tensor> sequences() { return std::vector<Tensor>(2, torch::zeros({16, 8}, torch::kLong)); }

// Layers of two classes, so that all choices can be tried.
inline ModelWithLoss make_mlps(const ModelChoice& choice) {
  nn::Sequential layers;
  for (int64_t i = 0; i < choice.layers; ++i) layers->push_back(Mlp(6, 12));
  return {layers.ptr(), [layers](const std::vector<Tensor>& in) {
            auto forward = layers;
            return forward->forward(in.at(0)).square().mean();
          }};
}

// 4 ranks with slow arithmetic, so that much is sharded although the model is small.
inline SearchModuleLayoutsOptions slow_ranks() {
  SearchModuleLayoutsOptions options;
  options.ranks = 4;
  options.cost_model = round_numbers();
  options.cost_model->flops_per_second = 1e8;
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 2; };
  return options;
}

}  // namespace dtensor::testing
