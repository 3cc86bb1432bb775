// The range of a tensor's elements as plain numbers, for operators that divide it into bins.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

namespace dtensor::internal {

// The smallest and largest element of `self`, or of each index of its last dim where `coordinate_dims` is 1: [1 or
// columns, 2], a plain tensor on the CPU. If the elements are sharded, exchanges two numbers per rank and row. If
// `self` is Partial, it is replaced by its reduced tensor. REQUIRES: self.numel() > 0.
// Errors: as plain_numbers().
at::Tensor plain_range(at::Tensor& self, int64_t coordinate_dims, const c10::OperatorHandle& op);

}  // namespace dtensor::internal
