// Tensors passed as out=.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// As in LibTorch, an out= tensor without elements is resized to the result. Not a copied view, since its base could not
// follow.
bool may_grow(const at::Tensor& out);

// Writes `result` of `op` to an out= tensor, distributed or not, and returns that. A resized one takes the layout of
// the result; it keeps its dtype. Returns `result` itself if `out` is undefined, as for the other forms of an operator.
// Errors: those of check_fits(); Partial, as for copy_().
at::Tensor write_out(const at::Tensor& out, const at::Tensor& result, const c10::OperatorHandle& op);

// Errors: another size than that of the result, unless it may grow; a dtype that the result cannot be cast to.
void check_fits(const at::Tensor& out, const at::Tensor& result, const c10::OperatorHandle& op);

// Runs an operator with out= tensors as its functional form, then writes the results to them. Returns false, and does
// nothing, if there is no such form, there is no distributed input, or an out= tensor is plain.
bool run_functional_form(const OpInfo& info, torch::jit::Stack& stack);

// Whether there is an out= tensor without elements, which may have to be resized.
inline bool has_empty_out(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (!info.has_outs) return false;
  for (size_t a = 0; a < args.size(); ++a) {
    if (info.args[a].out && args[a].isTensor() && args[a].toTensor().numel() == 0) return true;
  }
  return false;
}

}  // namespace dtensor::internal
