#include "examples/models/vision.h"

#include "dtensor/distribute_module.h"
#include "dtensor/parallel_style.h"
#include "examples/models/layouts.h"

namespace examples {

using dtensor::ColwiseParallel;
using dtensor::RowwiseParallel;
using dtensor::Shard;

void shard_vit(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  for (const char* by_rows : {"q", "k", "v", "up"}) {
    if (name != by_rows) continue;
    shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(0)));
    shard_parameter(module, "bias", mesh, over(mesh, "tp", Shard(0)));
  }
  for (const char* by_columns : {"proj", "down"}) {
    if (name == by_columns) shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(1)));
  }
}

dtensor::ParallelPlan vit_styles() {
  return {{"blocks.*.[qkv]", ColwiseParallel()},
          {"blocks.*.proj", RowwiseParallel()},
          {"blocks.*.up", ColwiseParallel()},
          {"blocks.*.down", RowwiseParallel()}};
}

}  // namespace examples
