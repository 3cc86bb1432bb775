// Gradients arrive at a leaf in the leaf's own layout.
//
// Backward computes gradients in the cheapest layout (Partial for a data-parallel weight). When autograd passes the
// accumulated gradient to a leaf, one redistribution brings it, or the gradients of many leaves (gradient_bucket.h), to
// the leaf's placements, so that optimizers do not communicate. Inside a DelayGradientReduction scope the gradient
// keeps its layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace dtensor::internal {

// Makes sure that gradients of `leaf` are redistributed to its layout, if is_leaf_parameter(leaf). Cheap if registered
// already.
void keep_gradient_layout(const at::Tensor& leaf);

// Whether `t` requires grad, has no history, and is no view.
bool is_leaf_parameter(const at::Tensor& t);

// Reduces `leaf` in place, in a collective call, if it is Partial by the engine's choice, as a result of an operator
// may be: `t.norm(2, 1).detach().requires_grad_()`, or set_data() of it. Optimizers could not write to it, and
// operators would reduce it again after each step. A parameter that the user made Partial, by from_local(), stays so.
// `op`: the operator that takes it, for reports. REQUIRES: is_leaf_parameter(leaf).
void reduce_partial_parameter(const at::Tensor& leaf, const std::string& op);

// Inside backward: the distributed leaf that receives the gradient now being computed directly, and so determines its
// layout; undefined if there is none.
at::Tensor gradient_leaf();

}  // namespace dtensor::internal
