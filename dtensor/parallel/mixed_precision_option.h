// The mixed precision that a call gives to the parameters of a module.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dtensor/mixed_precision.h"

namespace dtensor::internal {

inline bool gives_any(const MixedPrecision& p) { return p.param_dtype || p.reduce_dtype; }

// Error (ValueError), in the name of `function`: a dtype that is not a floating-point one.
void check_dtypes(const MixedPrecision& given, const char* function);

// Error (ValueError), in the name of `function`: the parameter `t`, called `name`, has another one from an earlier
// call. REQUIRES: is_dtensor(t).
void check_agrees(const MixedPrecision& given, const std::string& name, const at::Tensor& t, const char* function);

}  // namespace dtensor::internal
