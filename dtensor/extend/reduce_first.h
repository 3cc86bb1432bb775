// Lists of tensors that an operator on lists is given while they are Partial. For the folders above.
#pragma once

#include <ATen/core/stack.h>

#include "dtensor/extend/op_info.h"

namespace dtensor {

// Puts reduced tensors in the places of the sums and averages that are Partial in the lists which the call reads, where
// there are several: one reduction for all of a mesh, and what was reduced before is not again. Communicates, by name
// of operator and argument.
void reduce_lists(const OpInfo& info, torch::jit::Stack& stack);

}  // namespace dtensor
