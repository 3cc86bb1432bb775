// Whether forward-mode AD gave a tensor a tangent. PyTorch supports one level, 0.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

inline bool has_tangent(const at::Tensor& t) { return t._fw_grad(/*level=*/0).defined(); }

}  // namespace dtensor::internal
