// Circular padding by concatenating slices, for calls without a halo exchange.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtensor::internal {

// aten::_pad_circular(self, pad), above autograd.
void pad_circular_by_pieces(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace dtensor::internal
