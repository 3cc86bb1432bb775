// What a distributed tensor carries besides its values, as text.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace dtensor::internal {

// Several lines, by the rules of DTensor::explain(). REQUIRES: is_dtensor(t).
std::string explain_tensor(const at::Tensor& t);

}  // namespace dtensor::internal
