// Small tensors whose numbers an operator's own code reads, as it would a list's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>

namespace dtensor::internal {

// The whole of `t` on the CPU, without gradient; `t` itself if it is plain. Gathers, for argument `argument` of `op`.
// Errors: no data in this process, as in an abstract world.
at::Tensor plain_numbers(const at::Tensor& t, const c10::OperatorHandle& op, const std::string& argument);

}  // namespace dtensor::internal
