#include "dtensor/parallel/mesh_dim_option.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace dtensor::internal {

int64_t mesh_dim_option(const DeviceMesh& mesh, const std::string& name, const char* function) {
  TORCH_CHECK_VALUE(mesh.defined(), "[", function, "] no mesh: give a DeviceMesh(world, shape)");
  const auto& names = mesh.names();
  if (!name.empty()) {
    const auto found = std::find(names.begin(), names.end(), name);
    TORCH_CHECK_VALUE(found != names.end(), "[", function, "] mesh_dim '", name, "' is no dim of ", mesh.to_string());
    return found - names.begin();
  }
  TORCH_CHECK_VALUE(mesh.ndim() == 1, "[", function, "] ", mesh.to_string(), " has ", mesh.ndim(),
                    " dims: name the one to use, {.mesh_dim = \"", names.front(), "\"}");
  return 0;
}

}  // namespace dtensor::internal
