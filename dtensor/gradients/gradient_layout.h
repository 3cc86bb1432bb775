// Gradients arrive at a leaf in the leaf's own layout.
//
// Backward computes gradients in the cheapest layout (Partial for a data-parallel weight). When autograd passes the
// accumulated gradient to a leaf, one redistribution brings it, or the gradients of many leaves (gradient_bucket.h), to
// the leaf's placements, so that optimizers do not communicate. Inside a DelayGradientReduction scope the gradient
// keeps its layout.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

// Makes sure that gradients of `leaf` (distributed, requires grad, no history) are redistributed to its layout. Cheap
// if registered already.
void keep_gradient_layout(const at::Tensor& leaf);

// True for a tensor to which keep_gradient_layout applies.
bool is_leaf_parameter(const at::Tensor& t);

// Inside backward: the distributed leaf that receives the gradient now being computed directly, and so determines its
// layout; undefined if there is none.
at::Tensor gradient_leaf();

}  // namespace dtensor::internal
