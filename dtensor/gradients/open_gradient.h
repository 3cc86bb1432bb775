// Lets gradients be added to an existing .grad before they are reduced.
//
// While .grad is open it has the layout of the new gradients, mostly Partial, with its previous value as one of the
// addends. Closing it restores its layout and memory, with the sum in it, so that optimizers and views that refer to
// either see the sum.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/placement.h"

namespace dtensor::internal {

// Changes the layout of `grad` to `placements`, without communication. Returns false, and does nothing, if that is not
// possible.
bool open_gradient(const at::Tensor& grad, const Placements& placements);

// Restores the memory and layout of `grad` and writes `sum` there. Returns false, and does nothing, if `grad` is not
// open, or had another layout.
bool close_gradient(const at::Tensor& grad, const at::Tensor& sum);

// Restores the memory of `grad` with its sum from before it was opened. Returns false, and does nothing, if `grad` is
// not open.
bool forget_addends(const at::Tensor& grad);

}  // namespace dtensor::internal
