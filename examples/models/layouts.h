// Layouts in words of mesh dims.
#pragma once

#include <string>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace examples {

// `placement` over the mesh dim `name`, if the mesh has it; replicated over the others.
inline dtensor::Placements over(const dtensor::DeviceMesh& mesh, const std::string& name,
                                const dtensor::Placement& placement) {
  dtensor::Placements placements;
  for (const auto& dim : mesh.names()) placements.push_back(dim == name ? placement : dtensor::Replicate());
  return placements;
}

}  // namespace examples
