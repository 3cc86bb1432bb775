// The order of a part's dims in memory.
#pragma once

#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::testing {

// Whether the dims of `part` are in the order in memory that the strides of `spec` have, without gaps. Those of size 1
// do not count.
inline bool is_in_order(const at::Tensor& part, const Spec& spec) {
  return internal::has_strides(part, internal::dense_in_order_of(spec.strides(), part.sizes()));
}

}  // namespace dtensor::testing
