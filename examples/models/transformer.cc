#include "examples/models/transformer.h"

#include "dtensor/distribute_module.h"
#include "examples/models/layouts.h"

namespace examples {

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

}  // namespace examples
