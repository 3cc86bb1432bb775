// The reduction of tensors that are in one process, in the same order and precision by every communicator, so that results are
// the same bit for bit. Internal to the communicators.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "placement/placement.h"

namespace dtensor {

// Writes the reduction of addend(0), ..., addend(count - 1) into `out`, in this order; half types accumulate in float32. For
// bool, sum is "or" and product is "and", as ATen's add and mul have it. Addends may be on other devices.
void reduce_in_order(const at::Tensor& out, size_t count, ReduceOp op, const std::function<at::Tensor(size_t)>& addend);

}  // namespace dtensor
