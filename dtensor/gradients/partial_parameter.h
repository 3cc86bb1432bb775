// Parameters are not Partial.
//
// A Partial result of an operator may become a leaf parameter: `t.norm(2, 1).detach().requires_grad_()`, or set_data()
// of it. Optimizers could not write to it, and operators would reduce it again after each step; so the first operator
// that takes the parameter reduces it permanently. A parameter whose layout the user chose, from from_local(parts,
// mesh, {Partial()}).requires_grad_(), keeps that.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace dtensor::internal {

// Reduces `leaf` in place, in a collective call, if it is Partial by the engine's choice. `op`: the operator that takes
// it, for reports. REQUIRES: is_leaf_parameter(leaf).
void reduce_partial_parameter(const at::Tensor& leaf, const std::string& op);

}  // namespace dtensor::internal
