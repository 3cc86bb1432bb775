// Llama for searches of layouts: in bfloat16, with fused attention, of as many layers as the search asks for.
//
//   const auto make = examples::searched_llama(config);
//   search_module_layouts(make, examples::token_ids(batch, length), options);
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "dtensor/search_module_layouts_options.h"
#include "examples/models/llama.h"

namespace examples {

// Layer by layer; where the choice has the setting "checkpoint" of 1, each is computed again in backward.
torch::Tensor through_layers(const dtensor::ModelChoice& choice, size_t layers, torch::Tensor x,
                             const std::function<torch::Tensor(size_t, const torch::Tensor&)>& layer);

// The loss of inputs as token_ids() has them.
dtensor::MakeModel searched_llama(const LlamaConfig& config);

// Ids and targets, [batch, length] each, without data.
std::vector<torch::Tensor> token_ids(int64_t batch, int64_t length);

// Of such a batch, from one layer to the next: SearchModuleLayoutsOptions::between_layers.
torch::Tensor between_layers(const LlamaConfig& config, int64_t batch, int64_t length);

}  // namespace examples
