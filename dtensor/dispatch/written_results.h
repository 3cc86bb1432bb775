// Results that alias written arguments (in-place, out=), for handlers and local kernels.
#pragma once

#include <ATen/core/stack.h>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// Handlers and local kernels may return new tensors, whatever form of their operator is called. A result that is an
// argument by the schema is then copied to that argument, which is returned instead:
//
//   const WrittenResults written(info, stack);  // the arguments are on the stack
//   info.handler(op, stack);                    // leaves the results there
//   written.settle(stack);
//
// For global tensors and for one rank's plain ones. Errors: those of write_out(), before anything is written.
class WrittenResults {
 public:
  WrittenResults(const OpInfo& info, const torch::jit::Stack& stack);
  void settle(torch::jit::Stack& stack) const;

 private:
  const OpInfo& info_;
  // Per result: the argument that it aliases, an undefined tensor if none, or not one tensor. Empty: no result aliases
  // an argument.
  absl::InlinedVector<at::Tensor, 4> arguments_;
};

}  // namespace dtensor::internal
