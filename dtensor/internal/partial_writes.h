// In-place operators of LibTorch's own formulas on Partial tensors. Internal.
//
// In backward and in composite operators nobody chose the layout of what is written to: a sum over a sharded dim is
// Partial, and the formula goes on with clamp_min_(eps). Where the operator has no strategy for that, the tensor is
// reduced first: it gets another layout in place, and stays the same tensor to autograd. In the user's own code that is
// an error, since there the layout may be meant.
#pragma once

#include "dtensor/internal/call_inputs.h"

namespace dtensor {

// Library code runs, an argument that `info` writes to is Partial, and no view or other tensor ever shared the memory
// of one that is: the same decision on all ranks.
bool may_reduce_written(const OpInfo& info, const Inputs& in);
// Makes the Partial ones Replicate where they are Partial, in place. Communicates; by name of the argument.
// REQUIRES: may.
void reduce_written(const OpInfo& info, const Inputs& in);

}  // namespace dtensor
