// Which tensors share elements. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor {

// Do two of its elements lie in the same place, as those of an expanded dim? True also where that is not easily known.
bool overlaps_itself(const at::Tensor& t);

// Does an element of `a` lie where one of `b` does? Pieces of one tensor, such as chunk() gives, do not. True also
// where that takes too long to find out. REQUIRES: equal dtypes.
bool overlap(const at::Tensor& a, const at::Tensor& b);

// Which of them share elements with another one or overlap themselves, in n log n steps where those that may are few.
// REQUIRES: equal dtypes.
std::vector<bool> which_overlap(c10::ArrayRef<at::Tensor> tensors);

}  // namespace dtensor
