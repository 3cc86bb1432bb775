// A call of an operator on lists of tensors, such as _foreach_add_, as one call on the lists of their local tensors.
#pragma once

#include <ATen/core/stack.h>

#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// Calls `op` once per owned rank, on the rank's local tensors. `element` computes one tensor of the lists: it takes the
// arguments of `op`, with one element in place of each list, and further ones have defaults; it writes to no other
// argument than its first tensor.
//
// False, and nothing was done, unless all calls of `element` are as those of typed kernels (internal/typed_kernels.h):
// their decisions are cached, no tensor is plain, moves or is Partial, and no scope decides or limits the calls of
// this thread. Listeners make no difference, as one rank may have some. Then the caller calls `element` for one tensor
// of the lists after the other. Both ways give the same results, in the same layouts.
bool run_on_local_lists(const OpInfo& op, const OpInfo& element, torch::jit::Stack& stack);

}  // namespace dtensor::internal
