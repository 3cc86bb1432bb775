// Casting a distributed tensor part by part, below autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace dtensor::internal {

// `t` in another dtype, with the same layout and memory of its own; `t` itself if it has that dtype. Of a Partial
// tensor each addend is cast. REQUIRES: is_dtensor(t).
at::Tensor cast_parts(const at::Tensor& t, c10::ScalarType dtype);
// The same, but returns while a collective fills in `t`: then the result arrives with it.
at::Tensor cast_arriving_parts(const at::Tensor& t, c10::ScalarType dtype);

}  // namespace dtensor::internal
