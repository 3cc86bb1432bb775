#include "plan/largest_part.h"

#include <algorithm>
#include <map>

#include "plan/search/layout_geometry.h"

namespace dtensor::internal {

Shape largest_part(const Shape& sizes, const std::vector<int64_t>& mesh_shape, const Placements& placements) {
  return local_shape(sizes, mesh_shape, placements, Shape(placements.size(), 0));
}

int64_t largest_part_bytes(const TensorMeta& meta, const std::vector<int64_t>& mesh_shape,
                           const Placements& placements) {
  return LayoutGeometry(mesh_shape, meta).part_bytes(placement_pointers(placements));
}

int64_t largest_part_bytes(const TensorMeta& meta, const Layout& layout) {
  if (!layout.is_boxes()) return largest_part_bytes(meta, layout.mesh().shape(), layout.placements());
  const auto item = static_cast<int64_t>(c10::elementSize(meta.dtype));
  std::map<int64_t, int64_t> of_rank;
  int64_t most = 0;
  for (const RankBox& box : layout.boxes()) {
    int64_t bytes = item;
    for (int64_t n : box.sizes) bytes *= n;
    most = std::max(most, of_rank[box.rank] += bytes);
  }
  return most;
}

}  // namespace dtensor::internal
