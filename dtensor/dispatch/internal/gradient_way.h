// Finds where backward passes a gradient on to, to decide when it is reduced.
#pragma once

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"
#include "plan/spec.h"

namespace dtensor::internal {

// Inside backward, for an elementwise operator or a cast of a Partial gradient: the Partial layout in which the result
// can be deferred and reduced with others. Null: it cannot, or that is not known. It can
//  * where it goes only to parameters that are replicated where it is Partial, through operators on tensors of like
//    shapes: weights that are computed from parameters (w = g * v / v.norm(2, 1, true), exp(v), a cast of autocast).
//    These are reduced with all other gradients (gradient_bucket.h), if that sends no more than reducing the incoming
//    gradient;
//  * of a cast, where other gradients are added to it: else many casts of one activation would be reduced one by one.
// This follows from the graph of the backward, which is the same on all ranks.
SpecPtr layout_to_wait_in(const OpInfo& info, const Inputs& in);

}  // namespace dtensor::internal
