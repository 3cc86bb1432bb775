#include "examples/lm_sharding.h"

#include "dtensor/dtensor.h"

namespace examples {

using namespace dtensor;

namespace {

bool splits_batch(const std::string& dim_name) { return dim_name[0] == 'd'; }

}  // namespace

Placements layout(const DeviceMesh& mesh, const Placement& weights, const Placement& batch) {
  Placements placements;
  for (const auto& name : mesh.names()) placements.push_back(splits_batch(name) ? batch : weights);
  return placements;
}

void shard_model(const std::string& path, torch::nn::Module& module, const DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  const auto put = [&](const char* parameter, const Placement& placement) {
    shard_parameter(module, parameter, mesh, layout(mesh, placement, Replicate()));
  };
  if (name == "tokens" || name == "head") {
    put("weight", Shard(0));
  } else if (name == "wq" || name == "wk" || name == "wv" || name == "up") {
    put("weight", Shard(0));
    put("bias", Shard(0));
  } else if (name == "wo" || name == "down") {
    put("weight", Shard(1));
  }
}

}  // namespace examples
