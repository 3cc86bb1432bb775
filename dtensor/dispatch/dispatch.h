// Runs one operator call on distributed tensors.
//
//   look up the decision (or make it) -> redistribute inputs -> local operator per owned rank -> wrap results
//
// Registered as the one boxed fallback of the distributed dispatch key; below autograd.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtensor::internal {

// The fallback kernel.
void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same, but skips the operator's handler: for handlers that extend the rule.
void dispatch_by_rule(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace dtensor::internal
