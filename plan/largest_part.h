// The size of the largest part of a tensor. The single computation of it: the planner's search, which needs it for many
// layouts of one tensor, keeps the LayoutGeometry it is computed with.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/tensor_meta.h"

namespace dtensor::internal {

// Sizes of the first rank's part on a mesh of `mesh_shape`, which is a largest one.
Shape largest_part(const Shape& sizes, const std::vector<int64_t>& mesh_shape, const Placements& placements);
// Bytes of the largest part that any rank holds; for boxes, of all boxes of one rank.
int64_t largest_part_bytes(const TensorMeta& meta, const Layout& layout);
// The same on a mesh of `mesh_shape`, with one placement per mesh dim.
int64_t largest_part_bytes(const TensorMeta& meta, const std::vector<int64_t>& mesh_shape,
                           const Placements& placements);

}  // namespace dtensor::internal
