// How much the largest part of a tensor takes. One computation for all: the planner's search, which asks it of many
// layouts of one tensor, keeps the LayoutGeometry that it is made of.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/tensor_meta.h"

namespace dtensor {

// Sizes of the first rank's part on a mesh of `mesh_shape`, which no rank's are larger than.
Shape largest_part(const Shape& sizes, const std::vector<int64_t>& mesh_shape, const Placements& placements);
// Bytes of the largest part that any rank holds; of boxes, of all that one rank has.
int64_t largest_part_bytes(const TensorMeta& meta, const Layout& layout);
// The same on a mesh of `mesh_shape`, with one placement per mesh dim.
int64_t largest_part_bytes(const TensorMeta& meta, const std::vector<int64_t>& mesh_shape,
                           const Placements& placements);

}  // namespace dtensor
