// Assigning a plain tensor to a distributed one.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace dtensor::internal {

// Throws the error about it; the text names what to call instead of torch::load(). REQUIRES: is_dtensor(self).
[[noreturn]] void throw_plain_in_place_of(std::string_view function, const at::Tensor& self, const at::Tensor& plain);

}  // namespace dtensor::internal
