// Partial tensors that are reduced before an operator on them is decided on. For the folders above.
#pragma once

#include <ATen/core/stack.h>

#include "dtensor/extend/op_info.h"

namespace dtensor {

// Puts reduced tensors in the places of the sums and averages that are Partial in the lists which the call reads, where
// there are several: one reduction for all of a mesh, and what was reduced before is not again. Communicates, by name
// of operator and argument.
void reduce_lists(const OpInfo& info, torch::jit::Stack& stack);

// Is a sum or mean of `t` used beside `t` itself? So are those that keep their dims, in forward, as norms written by
// hand do: x - x.mean(-1, true). Then the tensor is reduced instead of them, whatever the order of the statements.
bool is_used_beside(const OpInfo& info, c10::ArrayRef<c10::IValue> args, const at::Tensor& t);

// `t`, which is Partial, reduced for that argument of the operator, and remembered so. Undefined, and nothing done: it
// would not be remembered.
at::Tensor reduce_first(const OpInfo& info, size_t arg, const at::Tensor& t);

}  // namespace dtensor
