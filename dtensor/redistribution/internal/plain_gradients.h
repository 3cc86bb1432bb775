// Gradients of plain tensors, one per rank of this process, that autograd made distributed.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "mesh/device_mesh.h"

namespace dtensor::internal {

// Replaces each replicated gradient by the part of its rank, mesh.local_ranks()[i]. For an output of unbind() or
// split() that was not used autograd makes zeros, which a MeshScope distributes, so that the gradient of the whole, of
// other gradients that are plain, is distributed. Never communicates. `function`: for errors.
// Error (NotImplementedError): the gradient has a gradient (create_graph).
void make_plain(std::vector<at::Tensor>& gradients, const DeviceMesh& mesh, const char* function);

}  // namespace dtensor::internal
