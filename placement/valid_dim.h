// Dims of tensors, as users give them.
#pragma once

#include <cstdint>
#include <optional>

namespace dtensor::internal {

// `dim` counted from the front; nullopt: a tensor of `ndim` dims has no such dim.
inline std::optional<int64_t> valid_dim(int64_t dim, int64_t ndim) {
  if (dim < -ndim || dim >= ndim) return std::nullopt;
  return dim < 0 ? dim + ndim : dim;
}

}  // namespace dtensor::internal
