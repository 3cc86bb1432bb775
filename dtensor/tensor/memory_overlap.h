// Which tensors share elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::internal {

// Whether two of its elements share memory, as in an expanded dim. True also where that is not easily known.
bool overlaps_itself(const at::Tensor& t);

// Whether an element of `a` shares memory with one of `b`. Pieces of one tensor, such as those of chunk(), do not. True
// also where that takes too long to find out. REQUIRES: equal dtypes.
bool overlap(const at::Tensor& a, const at::Tensor& b);

// Which of them share elements with another one or overlap themselves, in n log n steps if few can. REQUIRES: equal
// dtypes.
std::vector<bool> which_overlap(c10::ArrayRef<at::Tensor> tensors);

}  // namespace dtensor::internal
