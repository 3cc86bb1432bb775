// For uneven cuts, a few representative ranks of a mesh whose parts determine the maximum over all.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "plan/search/layout_geometry.h"

namespace dtensor::internal {

inline constexpr int64_t kMaxRanksVisited = int64_t{1} << 14;

using Coordinates = absl::InlinedVector<int64_t, 8>;  // some positions along one mesh dim

// Every rank has an equivalent among these: the rank that has, receives or keeps the most is among them, or is like one
// of them. The set is the product of the positions listed per mesh dim.
struct RepresentativeRanks {
  std::vector<Coordinates> along;  // per mesh dim, ascending
  bool all = true;                 // false if there were more than kMaxRanksVisited, and this is a sample
};
RepresentativeRanks representative_ranks(const LayoutGeometry& geometry, const PlacementPointers& before,
                                         const PlacementPointers& after);

// visit(coordinate) for every one of them.
template <typename Visit>
void for_each_rank(const RepresentativeRanks& ranks, Visit visit) {
  const auto ndim = static_cast<int64_t>(ranks.along.size());
  std::vector<size_t> index(ndim, 0);
  Shape coordinate(ndim, 0);
  for (bool done = false; !done;) {
    for (int64_t m = 0; m < ndim; ++m) coordinate[m] = ranks.along[m][index[m]];
    visit(coordinate);
    done = true;
    for (int64_t m = ndim; m-- > 0;) {
      if (++index[m] < ranks.along[m].size()) {
        done = false;
        break;
      }
      index[m] = 0;
    }
  }
}

// Elements of tensor dim d in the longest part of it that any rank holds.
int64_t longest_part(const LayoutGeometry& geometry, const PlacementPointers& layout, int64_t d);

}  // namespace dtensor::internal
