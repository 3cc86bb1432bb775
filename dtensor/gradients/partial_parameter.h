// Parameters are not Partial. For the folders above.
//
// What an operator left Partial may become a leaf parameter: `t.norm(2, 1).detach().requires_grad_()`, or set_data() of
// it. Optimizers could not write to it, and operators would reduce it again after each step; so the
// first operator that is given the parameter reduces it for good. A parameter that was made of a layout which the user
// chose, from from_local(parts, mesh, {Partial()}).requires_grad_(), keeps that.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace dtensor {

// Reduces `leaf` in its place, in a collective call, if it is Partial by the engine's choice. `op`: the operator that
// is given it, for reports. REQUIRES: is_leaf_parameter(leaf).
void reduce_partial_parameter(const at::Tensor& leaf, const std::string& op);

}  // namespace dtensor
