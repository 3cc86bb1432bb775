// All shapes of a mesh with given numbers of ranks and dims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dtensor::internal {

// All ways to write `ranks` as a product of `dims` sizes, in the order of the sizes. REQUIRES: both are positive.
inline std::vector<std::vector<int64_t>> mesh_shapes(int64_t ranks, size_t dims) {
  if (dims == 1) return {{ranks}};
  std::vector<std::vector<int64_t>> shapes;
  for (int64_t size = 1; size <= ranks; ++size) {
    if (ranks % size != 0) continue;
    for (std::vector<int64_t> shape : mesh_shapes(ranks / size, dims - 1)) {
      shape.insert(shape.begin(), size);
      shapes.push_back(std::move(shape));
    }
  }
  return shapes;
}

}  // namespace dtensor::internal
