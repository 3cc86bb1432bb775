// How the results of elementwise operators lie in memory.
#pragma once

#include "propagation/op_rule.h"

namespace dtensor {

// The strides of what ATen's elementwise loops make of the inputs.
Shape elementwise_strides(const OpCall& call);

// On a CPU those loops first convert what is of another dtype than they compute in, to memory of its own. Sets the
// strides of `metas` where that makes a difference.
void take_strides_of_converted(const OpCall& call, OutputMetas& metas);

}  // namespace dtensor
