// The order of a part's dims in memory.
#pragma once

#include "dtensor/tensor/representation.h"

namespace dtensor::testing {

// Whether the dims of `part` are in the order in memory that the strides of `spec` have, without gaps. Those of size 1
// do not count.
inline bool is_in_order(const at::Tensor& part, const Spec& spec) {
  const auto expected = internal::dense_in_order_of(spec.strides(), Shape(part.sizes().begin(), part.sizes().end()));
  for (int64_t d = 0; d < part.dim() && part.numel() > 0; ++d) {
    if (part.size(d) > 1 && part.stride(d) != expected[d]) return false;
  }
  return true;
}

}  // namespace dtensor::testing
