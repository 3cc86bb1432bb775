// Dispatch of LibTorch's operators with sharded tensors among the arguments: torch::clone(st), st.detach(),
// torch::linear(x, st).
//
// The fallback at kShardedKey tries the user's and the spec's handlers first (op_registry.h), then those registered
// here by the operator's name without overload ("add" of aten::add.Tensor), then op_registry.h's built-in ones. An
// operator without a handler is an error (c10::Error): "torch function 'add', with args: ... not supported for
// ShardedTensor!".
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>

namespace dtensor::sharded {

// Pops the arguments from the stack, and pushes the results.
using OperatorHandler = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

// REQUIRES: called before main(), or while no other thread computes. The last one counts.
void register_operator(const std::string& function, OperatorHandler handler);

// The fallback.
void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace dtensor::sharded
