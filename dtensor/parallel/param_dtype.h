// Operators compute with parameters in their param_dtype (mixed_precision.h). C++ modules have no hooks that could cast
// their inputs, so the operators that take such a parameter do that.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtensor::internal {

// Whether `t` belongs to a floating-point parameter with a param_dtype.
bool has_param_dtype(const at::TensorBase& t);

// Before a call above autograd that takes parameters with a param_dtype and other tensors with dims: replaces the
// distributed floating-point ones among the arguments on the stack by casts to param_dtype, which autograd records.
// Nothing happens under autocast, which chooses the dtypes; for operators that write, views, those that are elementwise
// on tensors of one shape, as in optimizers and averages, and those with running statistics, which stay as they are;
// nor in backward.
void cast_to_param_dtype(const c10::OperatorHandle& op, bool is_view, torch::jit::Stack& stack);

}  // namespace dtensor::internal
