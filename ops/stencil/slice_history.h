// What a program slices of its tensors. Who reads one window of a grid reads its neighbours next, as it did of the last
// grid of that layout: then one exchange brings what all of them reach. Internal to ops/.
//
//   for (...) next = u[1:-1] + u[2:] + u[:-2];  // three exchanges in the first round, one in each after it
//
// Windows belong together that were read of one tensor between two writes to it. Which are expected follows from the
// one that is read first, in the last few tensors of the same layout: of the first such tensor all of that size are,
// where they take little longer and little memory. It is the same on every rank, as all read the same in the same
// order.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "ops/stencil/slice_window.h"

namespace dtensor {

struct ExpectedBoxes {
  std::vector<int64_t> dims;  // as GhostRegion
  std::vector<std::vector<Run>> known;
  std::shared_ptr<const HaloPlan> plan;  // from the tensor
};

// `window` of `root` is about to be read, which ranks lack some of: what all windows reach that are expected. Null:
// that would take longer than they do one by one, or no others are expected.
std::shared_ptr<const ExpectedBoxes> expected_boxes(const at::Tensor& root, const SliceWindowPtr& window);

// It was read. `with_others`: they came with it.
void note_read(const at::Tensor& root, const SliceWindowPtr& window, bool with_others);

}  // namespace dtensor
