// The data that a step between two layouts of one tensor on one mesh moves, without visiting the ranks where their
// parts are regular.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "plan/mesh_dims.h"
#include "plan/tensor_meta.h"

namespace dtensor::internal {

// A layout in the planner's search: one placement per mesh dim, not owned.
using PlacementPointers = absl::InlinedVector<const Placement*, 4>;
PlacementPointers placement_pointers(const Placements& placements);

// Each layout below has one placement per mesh dim. Two layouts are those of one tensor, before and after.
class LayoutGeometry {
 public:
  // Both must outlive this.
  LayoutGeometry(const std::vector<int64_t>& mesh_shape, const TensorMeta& meta);

  int64_t ndim() const { return static_cast<int64_t>(mesh_shape_.size()); }
  int64_t tensor_ndim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t mesh_size(int64_t m) const { return mesh_shape_[m]; }
  int64_t size(int64_t d) const { return sizes_[d]; }
  int64_t item_bytes() const { return item_bytes_; }

  // True if mesh dim m leaves ranks different parts of tensor dim d.
  bool cuts(const PlacementPointers& layout, int64_t m, int64_t d) const {
    return mesh_shape_[m] > 1 && layout[m]->is_sharded_on(d);
  }
  // The mesh dims that cut tensor dim d.
  MeshDims cutters(const PlacementPointers& layout, int64_t d) const;

  // True if dropping the cuts on mesh dims `dims` (a bit each) of `cut` leaves every rank a superset of what it has
  // because no other mesh dim cuts the same tensor dim later.
  bool innermost(const PlacementPointers& cut, uint64_t dims) const;
  // True if every rank's part in `part` is known to be within its part in `whole`, which differs on `dims` only.
  bool inside(const PlacementPointers& part, const PlacementPointers& whole, uint64_t dims) const;
  // True if both cut the tensor into the same parts, and only their assignment to ranks changes. False where that is
  // not obvious.
  bool same_parts(const PlacementPointers& before, const PlacementPointers& after) const;

  // The indices of tensor dim d on the rank at `coordinate`, if only the mesh dims `cutters` cut it.
  IndexRanges runs_of(const PlacementPointers& layout, const MeshDims& cutters, int64_t d,
                      absl::Span<const int64_t> coordinate) const;
  LocalLayout part_of(const PlacementPointers& layout, absl::Span<const int64_t> coordinate) const;

  // The largest part any rank holds.
  int64_t part_bytes(const PlacementPointers& layout) const;

  // Bytes received by the rank that receives most: it receives every element of its new part that is not in its old one
  // exactly once. Exact, except in irregular layouts over more than 2^14 ranks, where a sample is visited.
  int64_t received_bytes(const PlacementPointers& before, const PlacementPointers& after) const;

  // Memory of an exchange along mesh dims `dims` in `chunks` rounds with packed messages, on the rank that needs most:
  // its parts before and after, and all that it sends and receives in its largest round. For a reduce-scatter also a
  // copy of every addend, including its own, and `reducing_bytes` per element of its result. Exact, except in irregular
  // layouts, or in several rounds, over more than 2^14 ranks or pairs of ranks, where a sample is visited.
  int64_t packed_bytes(const PlacementPointers& before, const PlacementPointers& after, const MeshDims& dims,
                       bool reduces, int64_t reducing_bytes, int64_t chunks) const;

 private:
  const std::vector<int64_t>& mesh_shape_;
  const Shape& sizes_;
  const int64_t item_bytes_;
};

}  // namespace dtensor::internal
