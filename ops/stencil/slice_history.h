// Records which slices a program reads, to prefetch them: a program that reads one window of a grid usually reads the
// same further windows as of the last grid of that layout. One exchange then fetches what all of them reach.
//
//   for (...) next = u[1:-1] + u[2:] + u[:-2];  // three exchanges in the first round, one in each after it
//
// Windows read from one tensor between two writes to it belong together. The first window read selects the expected
// ones, from the last few tensors of the same layout. For the first tensor of a layout, all windows of that size are
// expected, if they take little more time and memory. All ranks expect the same, since all read the same slices in the
// same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "ops/stencil/slice_window.h"

namespace dtensor {

struct ExpectedBoxes {
  std::vector<int64_t> dims;  // as in GhostRegion
  std::vector<std::vector<Run>> known;
  std::shared_ptr<const HaloPlan> plan;  // from the tensor
};

// Call before reading `window` of `root`, of which ranks lack elements: the boxes that cover all expected windows.
// Null: fetching them together would take longer than one by one, or no others are expected.
std::shared_ptr<const ExpectedBoxes> expected_boxes(const at::Tensor& root, const SliceWindowPtr& window);

// Records that a window was read. `with_others`: it was fetched together with the expected ones.
void note_read(const at::Tensor& root, const SliceWindowPtr& window, bool with_others);

}  // namespace dtensor
