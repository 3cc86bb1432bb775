// A small model and ranks for tests of searches of layouts.
#pragma once

#include <torch/nn.h>

#include <memory>
#include <vector>

#include "dtensor/search_module_layouts_options.h"
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
