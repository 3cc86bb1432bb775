// What comes out of an operator: global shapes, strides and dtypes of its results.
#pragma once

#include "propagation/op_rule.h"

namespace dtensor {

// Global metadata of the outputs: the rule's own function, ATen's meta kernel, or a trial on one element.
OutputMetas infer_outputs(const OpCall& call, const OpRule& rule);

// Of an elementwise operator, tagged as such or not: its dtypes are those that the operator itself gives on one
// element. An OpRule::metas for operators without a meta kernel.
OutputMetas infer_elementwise(const OpCall& call);

}  // namespace dtensor
