// Forward-mode AD, which has one level.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

inline bool has_tangent(const at::Tensor& t) { return t._fw_grad(/*level=*/0).defined(); }

}  // namespace dtensor::internal
