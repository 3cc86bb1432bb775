// reduce_in_order() by a kernel of this library where all memory is of one GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/types/span.h"
#include "placement/placement.h"

namespace dtensor::internal {

// False, and nothing done, where ATen's operators have to do it: several devices or a CPU, memory that is not
// contiguous, more than 16 addends or outputs, a dtype other than half, bfloat16, float, double, int and long, or a
// library that was built without CUDA.
bool reduce_on_gpu(absl::Span<const at::Tensor> outputs, absl::Span<const at::Tensor> addends, ReduceOp op);

}  // namespace dtensor::internal
