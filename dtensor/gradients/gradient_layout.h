// Gradients arrive at a leaf in the leaf's own layout. For the folders above.
//
// Backward gives gradients in whatever layout was cheapest (a data-parallel weight's is Partial). When autograd hands
// the sum of a backward pass to a leaf, one redistribution brings it to the leaf's placements, or one brings those of
// many leaves there (gradient_bucket.h), so that optimizers pay for nothing. Inside a DelayGradientReduction scope it
// is left as it is.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// Makes sure that gradients of `leaf` (distributed, requires grad, no history) are brought to its layout. Cheap if done
// already.
void keep_gradient_layout(const at::Tensor& leaf);

// True for a tensor to which keep_gradient_layout applies.
bool is_leaf_parameter(const at::Tensor& t);

// Inside backward: the distributed leaf that the gradient now being computed goes straight to, to whose layout it will
// be brought; undefined if there is none.
at::Tensor gradient_leaf();

}  // namespace dtensor
