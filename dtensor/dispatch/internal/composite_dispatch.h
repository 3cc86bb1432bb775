// Kernels of composite operators at kAboveAutogradKey: they record that the operator's code runs
// (composite_op_scope.h), and replace it for operators with a handler or with out=. Calls of the program follow the
// parallel styles of parameters, and compute in their param_dtype.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <optional>

#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// The kernel of all of them.
void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
// The same without styles and param_dtype. REQUIRES: an argument is distributed.
void run_code_of_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether the handler of a composite operator, if it has one, is for calls with `t`.
bool needs_handler(const OpInfo& info, const at::Tensor& t);
// The keys with which the operator's own code runs, for a call at kAboveAutogradKey with `keys` that needs no handler.
c10::DispatchKeySet keys_of_own_code(const OpInfo& info, c10::DispatchKeySet keys);
// The result of a composite operator whose code ran in `scope`. A composite may return a plain tensor that it made
// itself without any operator on distributed ones, for example for empty inputs: the outermost one distributes it.
at::Tensor distribute_result(const CompositeOpScope& scope, at::Tensor result);

// ------------------------------------------------------------ with the operator's own signature (composite_as_one.cc)
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
