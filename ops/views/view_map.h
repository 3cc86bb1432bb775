// Computes the layout of a reshaped tensor if every rank keeps the elements it holds.
//
// Both shapes list the same elements in row-major order, and a rank's part of either is a product of ascending index
// sets. So a rank may reshape its part by itself exactly if the two parts are the same set of flat indices. The dims
// fall into groups that are reshaped among themselves ([4, 6, 5] -> [24, 5] has {4, 6} -> {24} and {5} -> {5}); within
// a group, placements are followed one by one, left to right, and each candidate is checked on all ranks: a Shard of
// the leading dim follows to the leading dim where the cuts fall on whole rows, a later dim becomes StridedShard when
// flattened, and back.
//
// Many ranks hold parts that differ only by a shift. One of each kind is tracked, so that the work grows with the
// number of pieces along each mesh dim, not with the number of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "placement/geometry.h"
#include "placement/placement.h"

namespace dtensor::internal {

// Dims [in_begin, in_end) of the input become [out_begin, out_end) of the output.
struct DimGroup {
  int64_t in_begin = 0, in_end = 0, out_begin = 0, out_end = 0;
  friend bool operator==(const DimGroup& a, const DimGroup& b) {
    return a.in_begin == b.in_begin && a.in_end == b.in_end && a.out_begin == b.out_begin && a.out_end == b.out_end;
  }
};

// The smallest groups of dims with equal products, in order. Dims of size 1 that have no partner are added to the group
// after them, or form a last group that is empty on one side. REQUIRES: equal numbers of elements, not 0.
std::vector<DimGroup> group_dims(absl::Span<const int64_t> in, absl::Span<const int64_t> out);

// Follows the placements of a tensor of shape `in` through a reshape to `out`. A value: copy it to try alternatives.
class ViewMap {
 public:
  // REQUIRES: equal numbers of elements.
  ViewMap(absl::Span<const int64_t> in, absl::Span<const int64_t> out);

  // The next mesh dim, of n ranks, lays the input out as `placement`: Returns the output's placement, or nullopt (and
  // changes nothing) if there is none with which every rank keeps its elements. Partials stay; a MaskPartial becomes
  // the Partial it stands for.
  std::optional<Placement> follow(const Placement& placement, int64_t n);

 private:
  // The parts that some rank holds of one group's dims, in the input's shape and in the output's, both shifted to 0.
  struct Part {
    std::vector<IndexRanges> in, out;
  };
  struct Group {
    DimGroup dims;
    std::vector<int64_t> in_sizes, out_sizes;
    std::vector<Part> parts;  // one of each kind; none that are empty
  };

  std::optional<Placement> follow(Group& group, const Placement& placement, int64_t n);
  static bool cut(Group& group, int64_t in_dim, const Placement& in, int64_t out_dim, const Placement& out, int64_t n);

  bool empty_ = false;  // the tensor has no elements
  std::vector<Group> groups_;
};

}  // namespace dtensor::internal
