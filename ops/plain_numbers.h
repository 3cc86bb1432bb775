// Small tensors whose values an operator's handler reads on the host, like an int[]. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>

namespace dtensor {

// The whole of `t` on the CPU, without gradient; `t` itself if it is plain. Gathers, for argument `argument` of `op`.
// Errors: no data in this process, as in an abstract world.
at::Tensor plain_numbers(const at::Tensor& t, const c10::OperatorHandle& op, const std::string& argument);

// The smallest and largest element of `self`, or of each index of its last dim where `coordinate_dims` is 1: [1 or
// columns, 2], a plain tensor on the CPU. If the elements are sharded, exchanges two numbers per rank and row. If
// `self` is Partial, it is replaced by its reduced tensor. REQUIRES: self.numel() > 0.
// Errors: as plain_numbers().
at::Tensor plain_range(at::Tensor& self, int64_t coordinate_dims, const c10::OperatorHandle& op);

}  // namespace dtensor
