// Redistributes tensors before an operator on them is decided: Partial ones are reduced, and parameters gathered for
// operators that are called repeatedly with them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "dtensor/dispatch/op_info.h"
#include "placement/placement.h"

namespace dtensor::internal {

// In the tensor lists that a call reads, replaces sums and averages that are Partial by reduced tensors, if there are
// several: one reduction for all of a mesh; cached reductions are reused. Communicates, by name of operator and
// argument.
void reduce_lists(const OpInfo& info, torch::jit::Stack& stack);

// Whether this is a forward call with keepdim = true on a Partial sum. Its result is most likely combined with `t`, as
// in a hand-written norm: x - x.mean(-1, true). Then `t` is reduced instead of the result, whatever the order of the
// statements.
bool is_likely_used_beside(const OpInfo& info, c10::ArrayRef<c10::IValue> args, const at::Tensor& t);

// The Partial `t`, reduced for that argument of the operator, and cached. Undefined, and nothing done, if it would not
// be cached.
at::Tensor reduce_first(const OpInfo& info, size_t arg, const at::Tensor& t);

// Redistributes tensors[k], the argument args[k] of the operator, to the layout to[k]; all are on one mesh. One
// collective for all, whose results are cached, so that the next call needs none. Differentiable: the gradients come
// back in their own layouts, so that those of many calls are added up before they are redistributed to a parameter's
// layout.
std::vector<at::Tensor> gather_for_reuse(const OpInfo& info, c10::ArrayRef<size_t> args, at::TensorList tensors,
                                         c10::ArrayRef<Placements> to);

}  // namespace dtensor::internal
