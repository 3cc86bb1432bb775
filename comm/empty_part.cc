#include "comm/empty_part.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

namespace dtensor::internal {

at::Tensor empty_part(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, c10::Device device) {
  if (device.is_cpu()) return at::Tensor(at::detail::empty_strided_cpu(sizes, strides, dtype));
  return at::empty_strided(sizes, strides, at::TensorOptions(dtype).device(device));
}

at::Tensor empty_part(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device) {
  if (device.is_cpu()) return at::Tensor(at::detail::empty_cpu(sizes, dtype));
  return at::empty(sizes, at::TensorOptions(dtype).device(device));
}

}  // namespace dtensor::internal
