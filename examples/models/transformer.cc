#include "examples/models/transformer.h"

#include "dtensor/distribute_module.h"
#include "dtensor/parallel_style.h"
#include "examples/models/layouts.h"

namespace examples {

using dtensor::ColwiseParallel;
using dtensor::ParameterStyle;
using dtensor::RowwiseParallel;
using dtensor::Shard;
using dtensor::StridedShard;

void shard_transformer(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  if (auto* attention = module.as<torch::nn::MultiheadAttention>()) {
    for (const char* parameter : {"in_proj_weight", "in_proj_bias"}) {  // [queries; keys; values]
      if (attention->named_parameters(/*recurse=*/false).contains(parameter)) {
        shard_parameter(module, parameter, mesh, over(mesh, "tp", StridedShard(0, 3)));
      }
    }
    shard_parameter(module, "out_proj.weight", mesh, over(mesh, "tp", Shard(1)));
  } else if (name == "linear1") {
    shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(0)));
    shard_parameter(module, "bias", mesh, over(mesh, "tp", Shard(0)));
  } else if (name == "linear2") {
    shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(1)));
  }
}

dtensor::ParallelPlan transformer_styles() {
  const auto heads = ParameterStyle({{"in_proj_weight", StridedShard(0, 3)}, {"in_proj_bias", StridedShard(0, 3)}});
  return {{"*.self_attn", heads},
          {"*.multihead_attn", heads},
          {"*.out_proj", RowwiseParallel()},
          {"*.linear1", ColwiseParallel()},
          {"*.linear2", RowwiseParallel()}};
}

}  // namespace examples
