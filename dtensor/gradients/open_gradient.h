// A .grad to which gradients are added before they are reduced. For the folders above.
//
// While it is open it is laid out as what comes, mostly Partial, and is the sum all the same: what was there is one of
// the addends. Closed, it is again the tensor that it was, in the memory that it had, which holds the sum: optimizers
// and views that refer to either see it.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/placement.h"

namespace dtensor {

// Lays `grad` out as `placements`, without communication. False, and nothing done: that is not possible.
bool open_gradient(const at::Tensor& grad, const Placements& placements);

// Gives `grad` its memory back, and puts `sum` there, in the layout that it had. False, and nothing done: `grad` is not
// open, or had another layout.
bool close_gradient(const at::Tensor& grad, const at::Tensor& sum);

// Gives `grad` its memory back, with the sum that was there before it was opened. False, and nothing done: `grad` is
// not open.
bool forget_addends(const at::Tensor& grad);

}  // namespace dtensor
