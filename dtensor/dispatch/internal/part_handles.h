// Views of parts, made without the dispatcher, for typed kernels of views.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/rank_tensors.h"

namespace dtensor::internal {

// Whether view_part() may be called for the parts: their operators below autograd are those of their device, so that
// they are not conjugated or negated and the like, and they are row-major.
bool may_view_parts(const RankTensors& parts);

// As ATen's view(), below autograd. Error: that of ATen, where the part has another number of elements, as the program
// has resized it. REQUIRES: may_view_parts({part}).
at::Tensor view_part(const at::Tensor& part, c10::IntArrayRef sizes);

// Whether permuted_part() may be called for the parts: as above, but for the order of their dims.
bool may_permute_parts(const RankTensors& parts);

// As ATen's permute(), below autograd: dim d of the result is dim order[d] of the part. Error: that of ATen, where the
// part has another number of dims, as the program has resized it. REQUIRES: may_permute_parts({part}), and `order`
// names each dim once.
at::Tensor permuted_part(const at::Tensor& part, c10::IntArrayRef order);

// Other handles of the same memory, with the sizes and strides of the parts.
RankTensors other_handles(const RankTensors& parts);

}  // namespace dtensor::internal
