#include "examples/models/experts.h"

#include "dtensor/distribute_module.h"
#include "dtensor/parallel_style.h"
#include "examples/models/layouts.h"

namespace examples {

void shard_experts(const std::string&, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  if (!module.as<Experts>()) return;
  shard_parameter(module, "up", mesh, over(mesh, "ep", dtensor::Shard(0)));
  shard_parameter(module, "down", mesh, over(mesh, "ep", dtensor::Shard(0)));
}

dtensor::ParallelPlan experts_styles() {
  return {{"", dtensor::ParameterStyle({{"up", dtensor::Shard(0)}, {"down", dtensor::Shard(0)}})}};
}

}  // namespace examples
