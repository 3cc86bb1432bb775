// The part of a dim that slice() takes.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstdint>

#include "propagation/op_call.h"

namespace dtensor::internal {

// The indices start, start + step, ... of a dim, all of which it has.
struct SliceRange {
  int64_t start = 0, count = 0, step = 1;

  // Whether no element of a dim of `size` changes its place: all are taken, or none.
  bool moves_nothing(int64_t size) const { return count == 0 || count == size; }
};

// Bounds as in Python: None, from the end where negative, and beyond the dim. REQUIRES: step > 0.
inline SliceRange slice_range(const c10::IValue& start, const c10::IValue& end, int64_t step, int64_t size) {
  const auto bound = [&](const c10::IValue& value, int64_t missing) {
    const int64_t at = value.isNone() ? missing : value.toInt();
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t first = bound(start, 0), past = std::max(first, bound(end, size));
  return {first, past > first ? 1 + (past - first - 1) / step : 0, step};
}

// Of slice() and its kin, whose shape functions reject other steps.
inline SliceRange slice_range(const OpCall& call, int64_t size) {
  return slice_range(call.arg("start"), call.arg("end"), std::max<int64_t>(1, call.get_int("step")), size);
}

}  // namespace dtensor::internal
