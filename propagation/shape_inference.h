// Infers the global shapes, strides and dtypes of an operator's results.
#pragma once

#include "propagation/op_rule.h"

namespace dtensor::internal {

// Global metadata of the outputs: the rule's own function, ATen's meta kernel, or a trial on one element. Results that
// the operator writes to its arguments have the metadata of these. propagate() calls it once per decision; the rule
// finds the result in OpCall::results. Errors: of ATen, for an invalid call; an argument cannot hold the result that is
// written to it; NotImplementedError if the shape cannot be known, or an argument would change its shape.
OutputMetas infer_outputs(const OpCall& call, const OpRule& rule);

// OpRule::metas for elementwise operators without a meta kernel, tagged as elementwise or not: the dtypes are those of
// the operator itself on one element.
OutputMetas infer_elementwise(const OpCall& call);
// The strides of the result of ATen's elementwise loops for the inputs.
Shape elementwise_strides(const OpCall& call);

}  // namespace dtensor::internal
