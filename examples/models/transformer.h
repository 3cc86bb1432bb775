// Sharding functions for torch::nn's own transformer: encoder, decoder, attention.
//
//   torch::nn::Transformer model(torch::nn::TransformerOptions(64, 8, 2, 2).dropout(0.0));
//   distribute_module(*model, mesh, examples::shard_transformer);
//
// Source: Vaswani et al., Attention Is All You Need, 2017; Shoeybi et al., Megatron-LM, 2019.
#pragma once

#include <torch/nn.h>

#include <string>

#include "mesh/device_mesh.h"

namespace dtensor {
struct ParallelPlan;
}

namespace examples {

// For distribute_module(), of a torch::nn::Transformer, its layers, or a torch::nn::MultiheadAttention alone: heads and
// hidden features over "tp", everything else replicated. The weight of queries, keys and values is one tensor; every
// rank holds its heads of all three.
void shard_transformer(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

// For parallelize_module() over "tp", of a torch::nn::Transformer: the same layouts as styles.
dtensor::ParallelPlan transformer_styles();

}  // namespace examples
