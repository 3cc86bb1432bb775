// Computes output metadata by running ATen on meta tensors, for operators whose own meta kernel is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "propagation/op_rule.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {

// The metadata that a rule returns for outputs like `tensors`, one per schema return.
OutputMetas metas_of(const std::vector<at::Tensor>& tensors);

// The dtype in which half types are added up.
inline c10::ScalarType widened(c10::ScalarType dtype) { return c10::isReducedFloatingType(dtype) ? at::kFloat : dtype; }

// Row-major metadata: one output per dtype.
OutputMetas contiguous_metas(c10::IntArrayRef sizes, const std::vector<c10::ScalarType>& dtypes);

// The same results, channels-last if `t` is, else row-major.
OutputMetas in_format_of(const Spec& t, OutputMetas metas);

// Strides of a dense local part of `sizes` whose dims are ordered in memory as in `global_strides`.
std::vector<int64_t> local_strides(c10::IntArrayRef sizes, c10::IntArrayRef global_strides);

}  // namespace dtensor::internal
