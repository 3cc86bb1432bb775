// What distribute_module() does, for functions that set layouts of parameters in their own way.
#pragma once

#include <ATen/core/Tensor.h>

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

// Whether `t` is distributed with a layout that was decided: not one that a MeshScope gave when `t` was made.
bool has_decided_layout(const at::Tensor& t);

// shard_parameter() on one mesh dim: on the others the parameter is replicated, or stays as it is if it is on `mesh`
// already. `path` of the module, for errors. Errors (ValueError): the parameter is on another mesh; the placement does
// not fit.
void shard_parameter_over(torch::nn::Module& module, const std::string& path, const std::string& name,
                          const DeviceMesh& mesh, int64_t mesh_dim, const Placement& placement);

}  // namespace dtensor::internal
