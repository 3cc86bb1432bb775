// Tensors passed as out=, and results that alias other written arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// As in LibTorch, an out= tensor without elements is resized to the result. Not a copied view, since its base could not
// follow.
bool may_grow(const at::Tensor& out);

// Writes `result` of `op` to an out= tensor, distributed or not, and returns that. A resized one takes the layout of
// the result; it keeps its dtype. Returns `result` itself if `out` is undefined, as for the other forms of an operator.
// Errors: another size than that of the result, unless it may grow; a dtype that the result cannot be cast to; Partial,
// as for copy_().
at::Tensor write_out(const at::Tensor& out, const at::Tensor& result, const c10::OperatorHandle& op);

// Runs an operator with out= tensors as its functional form, then writes the results to them. Returns false, and does
// nothing, if there is no such form, there is no distributed input, or an out= tensor is plain.
bool run_functional_form(const OpInfo& info, torch::jit::Stack& stack);

// The same if there is an out= tensor without elements, which may have to be resized; else false.
bool run_to_resize(const OpInfo& info, torch::jit::Stack& stack);

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
