// An existing .grad to which gradients are added before they are reduced is open: it has the layout of the new
// gradients, mostly Partial, with its previous value as one of the addends, and then their reduced sum. Closing it
// restores its layout and memory, with the sum in it, so that optimizers and views that refer to either see the sum.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/placement.h"

namespace dtensor::internal {

// Opens `grad`: changes its layout to `placements`, without communication. Returns false, and does nothing, if that is
// not possible.
bool open_gradient(const at::Tensor& grad, const Placements& placements);

// Gives the open `grad` the contents of `sum`, which may be arriving: it stays open. Returns false, and does nothing,
// if `grad` is not open, or had another layout or dtype before.
bool put_sum_in_open(const at::Tensor& grad, const at::Tensor& sum);

// Restores the memory and layout of `grad` and writes its sum there, when it has arrived. Does nothing if it is not
// open, or has no sum yet. Error: that of the collective that fills in the sum; then `grad` stays open.
void close_gradient(const at::Tensor& grad);

// Restores the memory of `grad` with its value from before it was opened. Returns false, and does nothing, if `grad` is
// not open.
bool forget_addends(const at::Tensor& grad);

}  // namespace dtensor::internal
