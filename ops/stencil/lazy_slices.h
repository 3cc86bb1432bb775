// The part of a dim that slices and selections take.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

#include "ops/support/arguments.h"

namespace dtensor::internal {

// The indices start, start + step, ... of a dim.
struct Taken {
  int64_t dim = 0, start = 0, count = 0, step = 1;
};

// By slice.Tensor and slice_backward. nullopt: the operator follows its rule, since that is all or nothing of the dim,
// or the arguments are invalid and the operator itself reports the error.
std::optional<Taken> taken_by_slice(const Arguments& args, at::IntArrayRef sizes);

}  // namespace dtensor::internal
