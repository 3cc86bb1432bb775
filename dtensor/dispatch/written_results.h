// Results that are arguments which the operator writes to (in-place, out=), whoever computes them. For the folders
// above.
#pragma once

#include <ATen/core/stack.h>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor {

// Handlers and local kernels may give tensors of their own, whatever form of their operator is called. What the schema
// says to be an argument is then written to that argument and given in the place of the result:
//
//   const WrittenResults written(info, stack);  // the arguments are on the stack
//   info.handler(op, stack);                    // leaves the results there
//   written.settle(stack);
//
// Of global tensors, and of one rank's plain ones alike. Errors: those of write_out(), before anything is written.
class WrittenResults {
 public:
  WrittenResults(const OpInfo& info, const torch::jit::Stack& stack);
  void settle(torch::jit::Stack& stack) const;

 private:
  const OpInfo& info_;
  // Per result: the argument that it is, an undefined tensor where it is none or is not one tensor. Empty: none is.
  absl::InlinedVector<at::Tensor, 4> arguments_;
};

}  // namespace dtensor
