// Strides of the results of elementwise operators.
#pragma once

#include "propagation/op_rule.h"

namespace dtensor {

// The strides of the result of ATen's elementwise loops for the inputs.
Shape elementwise_strides(const OpCall& call);

// On a CPU those loops first convert inputs of another dtype than they compute in, to memory of their own. Sets the
// strides of `metas` if that makes a difference.
void take_strides_of_converted(const OpCall& call, OutputMetas& metas);

}  // namespace dtensor
