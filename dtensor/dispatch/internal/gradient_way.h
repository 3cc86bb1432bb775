// Where the gradient goes that an operator in backward computes, as far as it matters to when it is reduced. Internal.
#pragma once

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"
#include "plan/spec.h"

namespace dtensor {

// Inside backward, of an elementwise operator or a cast that is given a Partial gradient: the layout, Partial as well,
// in which the result can wait to be reduced with others. Null: it cannot, or that is not known. It can
//  * where it goes to parameters alone that are replicated where it is Partial, through operators on tensors of like
//    shapes: weights that are made of parameters (w = g * v / v.norm(2, 1, true), exp(v), a cast of autocast). They are
//    reduced with all other gradients (gradient_bucket.h), if that does not take more than what came;
//  * of a cast, where other gradients are added to it: as many casts of one activation would be reduced one by one.
// This follows from the graph of the backward, which is the same on all ranks.
SpecPtr layout_to_wait_in(const OpInfo& info, const Inputs& in);

}  // namespace dtensor
