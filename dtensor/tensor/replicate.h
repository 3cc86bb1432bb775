// Plain tensors as distributed ones that every rank holds. For the folders above.
#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace dtensor {

// Shares the memory of `t`, between ranks too: to be read only.
at::Tensor replicate_plain(const at::Tensor& t, const DeviceMesh& mesh);
// The same with memory of its own on every rank: for what users get to see, gradients among them.
at::Tensor replicate_copy(const at::Tensor& t, const DeviceMesh& mesh);

}  // namespace dtensor
