// LayoutGeometry::part_bytes().
#include "plan/search/even_cuts.h"
#include "plan/search/layout_geometry.h"
#include "plan/search/representative_ranks.h"

namespace dtensor::internal {

int64_t LayoutGeometry::part_bytes(const PlacementPointers& layout) const {
  Shape sizes = sizes_;
  bool even = true;
  bool strided = false;
  for (int64_t m = 0; m < ndim(); ++m) {
    if (!layout[m]->is_sharded() || mesh_shape_[m] == 1) continue;
    int64_t& size = sizes[layout[m]->dim()];
    size = first_part(size, *layout[m], mesh_shape_[m], even);
    strided |= layout[m]->is_strided_shard();
  }
  int64_t bytes = item_bytes_;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    // Strides may cut a short part into fewer, larger pieces than a long one.
    bytes *= even || !strided ? sizes[d] : longest_part(*this, layout, d);
  }
  return bytes;
}

}  // namespace dtensor::internal
