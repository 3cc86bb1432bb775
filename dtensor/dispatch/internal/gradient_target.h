// CallContext::gradient_target: the layout that backward brings the gradient being computed to.
#pragma once

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"
#include "propagation/op_rule.h"

namespace dtensor::internal {

// The parameter whose gradient the present call computes, for rules with OpRule::uses_gradient_target. Undefined: none,
// or one whose gradient is reduced with those of its group (leaf_group.h). REQUIRES: inside backward.
at::Tensor leaf_of_gradient(const OpRule& rule);

// The gradient target; null: none. REQUIRES: inside backward. It is
//  * the layout of `leaf`, that of leaf_of_gradient();
//  * for an elementwise operator or a cast of a Partial gradient, the Partial layout in which the result can be deferred
//    and reduced with others (gradient_bucket.h), if that sends no more than reducing the incoming gradient.
//
// A result can be deferred where it goes only to parameters that are replicated where it is Partial, through operators
// on tensors of like shapes: weights that are computed from parameters (w = g * v / v.norm(2, 1, true), exp(v), a cast
// of autocast). The result of a cast can, too, where other gradients are added to it: else many casts of one activation
// would be reduced one by one. This follows from the graph of the backward, which is the same on all ranks.
SpecPtr find_gradient_target(const OpInfo& info, const at::Tensor& leaf, const Inputs& in);

}  // namespace dtensor::internal
