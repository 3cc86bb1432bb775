// Layouts in words of mesh dims.
#pragma once

#include <string>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace torch::nn {
class Module;
}

namespace examples {

// `placement` over the mesh dim `name`, if the mesh has it; replicated over the others.
inline dtensor::Placements over(const dtensor::DeviceMesh& mesh, const std::string& name,
                                const dtensor::Placement& placement) {
  dtensor::Placements placements;
  for (const auto& dim : mesh.names()) placements.push_back(dim == name ? placement : dtensor::Replicate());
  return placements;
}

// For distribute_module(): every parameter's first dim over all dims of the mesh, as fully sharded data parallelism
// does. Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020.
void shard_fully(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

}  // namespace examples
