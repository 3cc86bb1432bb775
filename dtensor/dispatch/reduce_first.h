// Tensors that move before an operator on them is decided on: Partial ones that are reduced, and parameters that are
// gathered for operators that are called again and again with them. For the folders above.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "dtensor/dispatch/op_info.h"
#include "placement/placement.h"

namespace dtensor {

// Puts reduced tensors in the places of the sums and averages that are Partial in the lists which the call reads, where
// there are several: one reduction for all of a mesh, and what was reduced before is not again. Communicates, by name
// of operator and argument.
void reduce_lists(const OpInfo& info, torch::jit::Stack& stack);

// Is this a call with keepdim = true in forward, on sums? Its result is most likely used beside `t`, as in a norm that
// is written by hand: x - x.mean(-1, true). Then `t` is reduced instead of it, whatever the order of the statements.
bool is_likely_used_beside(const OpInfo& info, c10::ArrayRef<c10::IValue> args, const at::Tensor& t);

// `t`, which is Partial, reduced for that argument of the operator, and remembered so. Undefined, and nothing done: it
// would not be remembered.
at::Tensor reduce_first(const OpInfo& info, size_t arg, const at::Tensor& t);

// Brings tensors[k], the argument args[k] of the operator, to the layout to[k]; all are on one mesh. They come in one
// collective, which is remembered, so that the next call has none. Differentiable: the gradients come back as they are,
// so that those of many calls are added up before they are brought to a parameter's layout.
std::vector<at::Tensor> gather_for_reuse(const OpInfo& info, c10::ArrayRef<size_t> args, at::TensorList tensors,
                                         c10::ArrayRef<Placements> to);

}  // namespace dtensor
