// Strides, paddings and the like of windows over images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtensor::internal {

// The value for the k-th window dim: `list` has one number per dim, or one for all.
inline int64_t along(const std::vector<int64_t>& list, size_t k) { return list.size() == 1 ? list[0] : list.at(k); }

}  // namespace dtensor::internal
