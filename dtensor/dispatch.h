// Life of one operator call on distributed tensors. Internal.
//
//   look up the decision (or make it) -> redistribute inputs -> local operator per owned rank -> wrap results
//
// Registered as the one boxed fallback of the distributed dispatch key; below autograd.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "dtensor/representation.h"
#include "mesh/comm_event.h"
#include "propagation/strategy_cache.h"

namespace dtensor {

// The fallback kernel.
void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same, past the operator's handler: for handlers that add something to what the rule does.
void dispatch_by_rule(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Brings a distributed tensor to other placements below autograd: a tensor with memory of its own, or `t` itself if they are the
// present ones.
at::Tensor redistribute_below_autograd(const at::Tensor& t, const Placements& to, const CommCause& cause, bool async_op = false);

// A plain tensor seen as one that every rank of the mesh holds. Shares its memory, between ranks too: to be read only.
at::Tensor replicate_plain(const at::Tensor& t, const DeviceMesh& mesh);
// The same with memory of its own on every rank: for what users get to see, gradients among them.
at::Tensor replicate_copy(const at::Tensor& t, const DeviceMesh& mesh);

}  // namespace dtensor
