// Global indices on one rank: which of them point into its part, and their local index.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/geometry.h"

namespace dtensor::internal {

// Whether a part holds all of a dim of size `size`.
bool holds_all(const IndexRanges& runs, int64_t size);

struct LocalIndex {
  at::Tensor index;  // local index; `otherwise` where not held
  at::Tensor held;   // bool: which of the indices point into the local part
};

// `index`: global indices, each within the dim. Keeps the dtype of `index`.
LocalIndex localize(const at::Tensor& index, const IndexRanges& runs, int64_t otherwise);

// Throws ATen's IndexError if an index is not in [low, size): the range is that of the whole dim, not of the rank's
// part. On devices that run behind the host the check is an assertion there.
void check_range(const at::Tensor& index, int64_t low, int64_t size, int64_t dim);

// The rows of `t` along `dim` in `runs`, clipped to the size of `t`; a view where possible.
at::Tensor take_runs(const at::Tensor& t, int64_t dim, const IndexRanges& runs);

}  // namespace dtensor::internal
