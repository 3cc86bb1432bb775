// Other placements below autograd: what operators and their handlers do to what they are given. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/comm_event.h"
#include "placement/placement.h"

namespace dtensor {

// A tensor with memory of its own, or `t` itself if the placements are the present ones. `async_op`: as of
// redistribute().
at::Tensor redistribute_below_autograd(const at::Tensor& t, const Placements& to, const CommCause& cause,
                                       bool async_op = false);

}  // namespace dtensor
