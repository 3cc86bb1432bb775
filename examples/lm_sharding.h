// Layouts of the language model and its batches on a mesh. Mesh dims whose names begin with 'd' split the batch, the
// others the weights.
//
//   distribute_module(*model, mesh, examples::shard_model);
#pragma once

#include <torch/nn.h>

#include <string>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace examples {

// `weights` on the mesh dims that split weights, `batch` on those that split the batch.
dtensor::Placements layout(const dtensor::DeviceMesh& mesh, const dtensor::Placement& weights,
                           const dtensor::Placement& batch);

// The complete sharding: tables and column-parallel layers by rows of the weight, row-parallel layers by its columns;
// everything else stays replicated. For distribute_module(): `path` is the module's own.
void shard_model(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

}  // namespace examples
