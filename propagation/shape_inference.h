// Infers the global shapes, strides and dtypes of an operator's results.
#pragma once

#include "propagation/op_rule.h"

namespace dtensor {

// Global metadata of the outputs: the rule's own function, ATen's meta kernel, or a trial on one element.
OutputMetas infer_outputs(const OpCall& call, const OpRule& rule);

// For elementwise operators, tagged as such or not: the dtypes are those of the operator itself on one element. An
// OpRule::metas for operators without a meta kernel.
OutputMetas infer_elementwise(const OpCall& call);

}  // namespace dtensor
