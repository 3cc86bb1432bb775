// Which dim of a mesh an option is about.
#pragma once

#include <cstdint>
#include <string>

#include "mesh/device_mesh.h"

namespace dtensor::internal {

// The dim called `name`; with "" the only one. Errors (ValueError), in the name of `function`: no mesh, no such dim, or
// several dims and none named.
int64_t mesh_dim_option(const DeviceMesh& mesh, const std::string& name, const char* function);

}  // namespace dtensor::internal
