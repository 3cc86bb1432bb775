// What a step between two layouts of one tensor on one mesh moves, without visiting the ranks where their parts are
// regular. Internal to the planner.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "plan/mesh_dims.h"
#include "plan/tensor_meta.h"

namespace dtensor {

// A layout as the planner's search holds it: one placement per mesh dim, owned by somebody else.
using Layers = absl::InlinedVector<const Placement*, 4>;
Layers layers_of(const Placements& placements);

class LayoutGeometry {
 public:
  // Both must outlive this.
  LayoutGeometry(const std::vector<int64_t>& mesh_shape, const TensorMeta& meta);

  int64_t ndim() const { return static_cast<int64_t>(mesh_shape_.size()); }
  int64_t tensor_ndim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t num_ranks() const {
    int64_t ranks = 1;
    for (int64_t n : mesh_shape_) ranks *= n;
    return ranks;
  }
  int64_t mesh_size(int64_t m) const { return mesh_shape_[m]; }
  int64_t size(int64_t d) const { return sizes_[d]; }

  // True if mesh dim m leaves ranks different parts of tensor dim d.
  bool cuts(const Layers& layout, int64_t m, int64_t d) const {
    return mesh_shape_[m] > 1 && layout[m]->is_sharded_on(d);
  }

  // True if dropping the cuts on mesh dims `dims` (a bit each) of `cut` leaves every rank a superset of what it has
  // because no other mesh dim cuts the same tensor dim later.
  bool innermost(const Layers& cut, uint64_t dims) const;
  // True if every rank's part in `part` surely lies within its part in `whole`, which differs on `dims` only.
  bool inside(const Layers& part, const Layers& whole, uint64_t dims) const;

  // The largest part any rank holds.
  int64_t part_bytes(const Layers& layout) const;

  // Every element of a rank's new part that is not in its old one is received exactly once: of the rank that receives
  // most. Exact, but in irregular layouts over more than 2^14 ranks, where it looks at some.
  int64_t received_bytes(const Layers& before, const Layers& after) const;

  // True if both cut the tensor into the same parts, so that only who has which changes. False where that is not plain.
  bool same_parts(const Layers& before, const Layers& after) const;

  // What an exchange along mesh dims `dims` in `chunks` rounds needs where messages are packed, on the rank that needs
  // most: its parts before and after, and in its largest round all that it sends and all that it receives. Of a
  // reduce-scatter every addend once more, its own too, and `reducing_bytes` per element of its result. Exact, but in
  // irregular layouts, or in several rounds, over more than 2^14 ranks or pairs of ranks, where it looks at some.
  int64_t packed_bytes(const Layers& before, const Layers& after, const MeshDims& dims, bool reduces,
                       int64_t reducing_bytes, int64_t chunks) const;

 private:
  // An even cut makes a digit of the index into a tensor dim equal to a digit of a mesh coordinate: on a rank with
  // coordinate c along mesh_dim, index / stride % radix is c / place % radix.
  struct Digit {
    int64_t mesh_dim, stride, radix, place;
  };
  using Digits = absl::InlinedVector<Digit, 4>;
  using Coordinates = absl::InlinedVector<int64_t, 8>;  // some positions along one mesh dim

  MeshDims cutters(const Layers& layout, int64_t d) const;
  // The digits of tensor dim d that `layout` cuts, false where the cuts are uneven.
  bool digits_of(const Layers& layout, int64_t d, Digits& digits) const;
  using Place = std::pair<int64_t, int64_t>;  // a digit of a coordinate: mesh dim (-1: none) and place
  // Of every digit of tensor dim d that both layouts cut alike or not at all: visit(radix, before's place, after's
  // place), which returns false to stop. False, perhaps after some, where the cuts are uneven.
  template <typename Visit>
  bool match_digits(const Layers& before, const Layers& after, int64_t d, Visit visit) const;
  // Of tensor dim d, what a rank's two parts share: on the rank where it is least. -1 where the cuts are uneven.
  int64_t least_overlap(const Layers& before, const Layers& after, int64_t d) const;
  Runs runs_of(const Layers& layout, const MeshDims& cutters, int64_t d, absl::Span<const int64_t> coordinate) const;
  Part layout_of(const Layers& layout, absl::Span<const int64_t> coordinate) const;
  Coordinates add_breakpoints(const Layers& layout, int64_t d, std::vector<Coordinates>& visit) const;
  int64_t longest_part(const Layers& layout, int64_t d) const;
  int64_t received_numel_by_visiting(const Layers& before, const Layers& after) const;
  // On some ranks that differ wherever ranks can: those with the most of everything are among them.
  template <typename Visit>  // visit(coordinate)
  bool visit_ranks(const Layers& before, const Layers& after, Visit visit) const;

  // What packed_bytes() adds up, in elements of one rank.
  struct Needs {
    int64_t in = 0, out = 0;
    int64_t kept = 0;    // of `out`, what it has
    int64_t wanted = 0;  // of `in`, by all of its group, itself among them
  };
  int64_t packed_bytes(const Needs& needs, int64_t group, bool reduces, int64_t reducing_bytes) const;
  // -1 where some cut is uneven.
  int64_t packed_bytes_if_even(const Layers& before, const Layers& after, const MeshDims& dims, int64_t group,
                               bool reduces, int64_t reducing_bytes) const;
  // Of tensor dim d, what the rank has and its group wants. `group_cuts`, `other_cuts`: those of `after`.
  int64_t wanted_by_group(const Runs& held, const Layers& after, int64_t d, const MeshDims& group_cuts,
                          const MeshDims& other_cuts, const Shape& coordinate) const;

  const std::vector<int64_t>& mesh_shape_;
  const Shape& sizes_;
  const int64_t item_bytes_;
};

}  // namespace dtensor
