// Windows that slide along dims: convolution and pooling. Which elements, padding included, a rank's windows reach.
// Internal to ops/.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/halo_plan.h"

namespace dtensor {

// Along one dim of `elements`, `count` windows of `size` elements that lie `dilation` apart; the first begins `padding`
// before the first element, and each `stride` after the one before. Windows may end beyond the last element.
struct WindowDim {
  int64_t dim = 0;  // of the tensor
  int64_t elements = 0, count = 0;
  int64_t size = 1, stride = 1, padding = 0, dilation = 1;

  int64_t span() const { return dilation * (size - 1) + 1; }
  // From the first element, or padding, of the first of `windows` to the last of the last: places of halo_dim().map,
  // which begin with the padding. Empty for none.
  Run reach(const Runs& windows) const;
  // A rank that has some of the windows of the result wants all that they reach.
  HaloDim halo_dim() const;
};

// Can ranks compute with what their windows reach: has each one run of them, whichever it has?
bool has_runs_of_windows(const Spec& spec, const std::vector<WindowDim>& windows);

}  // namespace dtensor
