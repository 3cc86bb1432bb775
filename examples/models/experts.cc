#include "examples/models/experts.h"

#include "dtensor/distribute_module.h"
#include "examples/models/layouts.h"

namespace examples {

void shard_experts(const std::string&, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  if (!module.as<Experts>()) return;
  shard_parameter(module, "up", mesh, over(mesh, "ep", dtensor::Shard(0)));
  shard_parameter(module, "down", mesh, over(mesh, "ep", dtensor::Shard(0)));
}

}  // namespace examples
