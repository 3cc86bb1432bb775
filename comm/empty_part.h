// Memory for a part that a collective fills in.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace dtensor::internal {

// As at::empty_strided() and at::empty(), for a caller who overwrites all of it: on a CPU without the dispatcher, which
// would take a third of the time to make a small tensor.
at::Tensor empty_part(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::Device device);
at::Tensor empty_part(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device);  // row-major

}  // namespace dtensor::internal
