// A rank's part in one layout. The other functions are in even_cuts.cc, received_bytes.cc and packed_bytes.cc.
#include "plan/search/layout_geometry.h"

namespace dtensor::internal {
namespace {

bool has(uint64_t set, int64_t bit) { return (set >> bit & 1) != 0; }

}  // namespace

PlacementPointers placement_pointers(const Placements& placements) {
  PlacementPointers pointers;
  for (const Placement& p : placements) pointers.push_back(&p);
  return pointers;
}

LayoutGeometry::LayoutGeometry(const std::vector<int64_t>& mesh_shape, const TensorMeta& meta)
    : mesh_shape_(mesh_shape), sizes_(meta.sizes), item_bytes_(static_cast<int64_t>(c10::elementSize(meta.dtype))) {}

MeshDims LayoutGeometry::cutters(const PlacementPointers& layout, int64_t d) const {
  MeshDims dims;
  for (int64_t m = 0; m < ndim(); ++m) {
    if (cuts(layout, m, d)) dims.push_back(m);
  }
  return dims;
}

bool LayoutGeometry::innermost(const PlacementPointers& cut, uint64_t dims) const {
  for (int64_t m = 0; m < ndim(); ++m) {
    if (!has(dims, m) || !cut[m]->is_sharded()) continue;
    for (int64_t later = m + 1; later < ndim(); ++later) {
      if (!has(dims, later) && cuts(cut, later, cut[m]->dim())) return false;
    }
  }
  return true;
}

IndexRanges LayoutGeometry::runs_of(const PlacementPointers& layout, const MeshDims& cutters, int64_t d,
                                    absl::Span<const int64_t> coordinate) const {
  IndexRanges runs;
  if (sizes_[d] > 0) runs.push_back({0, sizes_[d]});
  for (int64_t m : cutters) runs = shard_runs(runs, *layout[m], mesh_shape_[m], coordinate[m]);
  return runs;
}

LocalLayout LayoutGeometry::part_of(const PlacementPointers& layout, absl::Span<const int64_t> coordinate) const {
  LocalLayout part;
  for (int64_t d = 0; d < tensor_ndim(); ++d) part.dims.push_back(runs_of(layout, cutters(layout, d), d, coordinate));
  return part;
}

}  // namespace dtensor::internal
