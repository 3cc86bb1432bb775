// What distribute_module() does, for functions that set layouts of parameters in their own way.
#pragma once

#include <functional>
#include <string>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace torch::nn {
class Module;
}

namespace dtensor::internal {

// distribute_module() for a module of which some or all parameters may be distributed already, and with a
// `partition_fn` that need not distribute anything.
void distribute_rest_of_module(torch::nn::Module& module, const DeviceMesh& mesh,
                               const std::function<void(const std::string& name, torch::nn::Module& module,
                                                        const DeviceMesh& mesh)>& partition_fn);

// shard_parameter() on one mesh dim: on the others the parameter is replicated, or stays as it is if it is on `mesh`
// already. Error (ValueError): it is on another mesh.
void shard_parameter_over(torch::nn::Module& module, const std::string& name, const DeviceMesh& mesh, int64_t mesh_dim,
                          const Placement& placement);

}  // namespace dtensor::internal
