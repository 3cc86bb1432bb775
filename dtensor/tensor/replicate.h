// Plain tensors as replicated distributed ones.
#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace dtensor::internal {

// Shares the memory of `t`, also between ranks: read-only.
at::Tensor replicate_plain(const at::Tensor& t, const DeviceMesh& mesh);
// The same with memory of its own on every rank: for tensors that users can access, gradients among them.
at::Tensor replicate_copy(const at::Tensor& t, const DeviceMesh& mesh);

}  // namespace dtensor::internal
