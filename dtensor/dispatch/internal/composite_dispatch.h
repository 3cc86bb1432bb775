// Kernels of composite operators at kAboveAutogradKey: they record that the operator's code runs
// (composite_op_scope.h), and replace it for operators with a handler or with out=. Calls of the program follow the
// parallel styles of parameters, and compute in their param_dtype.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <optional>

#include "dtensor/dispatch/composite_op_scope.h"

namespace dtensor::internal {

// The kernel of all of them.
void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
// The same without styles and param_dtype. REQUIRES: an argument is distributed.
void run_code_of_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether `t` is distributed in parts of several sizes, for which some handlers are (OpInfo::handles_uneven_only).
bool has_uneven_shards(const at::Tensor& t);
// The result of a composite operator's code `inside`: distributed, also if the code has made it of no distributed one.
at::Tensor distribute_result(const CompositeOpScope& inside, at::Tensor result);

// ------------------------------------------------------------ with the operator's own signature (typed_composites.cc)
//
// Composite operators that models call often have typed kernels, which need no stack if the operator's own code is to
// run on the arguments as they are. Some composite operators compute, from local tensors that stay where they are, the
// local tensors of their result: linear, matmul, layer_norm. Their first call with given layouts runs the operators
// that it is composed of. If none of these moves an input, the layout of the result is kept in the strategy cache, and
// further calls are one look-up and the composite operator itself on the local tensors. Not for calls that autograd
// records: it would have to record the operators one by one.

// The kernel with the operator's own signature; nullopt: it has none.
std::optional<c10::KernelFunction> typed_composite_kernel(const c10::OperatorHandle& op);
// The same for a call that follows a style, after its inputs were moved. False: the stack is unchanged, and the call is
// to be decided by its parts.
bool run_as_one(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace dtensor::internal
