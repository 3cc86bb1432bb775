// Even cuts (all ranks get as much) as digits of an index: the overlap of two such layouts can be computed without
// visiting ranks.
//
// An index into a tensor dim is a number of mixed radix. A dim of 12 over mesh dims of 2 and 3, both Shard, has the
// digits "which half" (stride 6), tied to the first mesh dim, "which third of it" (stride 2), tied to the second, and a
// last one of radix 2 that is free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "plan/search/layout_geometry.h"

namespace dtensor::internal {

// Elements of `size` that the first rank along a mesh dim of size n keeps. `even` becomes false unless all ranks keep
// as many.
inline int64_t first_part(int64_t size, const Placement& placement, int64_t n, bool& even) {
  const int64_t pieces = placement.is_strided_shard() ? placement.split_factor() : 1;
  if (size % (pieces * n) == 0) return size / n;
  even = false;
  const int64_t piece = chunk(size, pieces, 0).size;
  if (piece == 0) return 0;
  return size / piece * chunk(piece, n, 0).size + chunk(size % piece, n, 0).size;
}

// An even cut makes a digit of the index into a tensor dim equal to a digit of a mesh coordinate: on a rank with
// coordinate c along mesh_dim, index / stride % radix is c / place % radix.
struct Digit {
  int64_t mesh_dim, stride, radix, place;
};
using Digits = absl::InlinedVector<Digit, 4>;

// The digits of tensor dim d that `layout` cuts. False where cuts are uneven: `digits` may then hold some of them.
bool digits_of(const LayoutGeometry& geometry, const PlacementPointers& layout, int64_t d, Digits& digits);

// A digit of a coordinate: mesh dim (-1: none) and place.
using Place = std::pair<int64_t, int64_t>;

// Calls visit(radix, before's place, after's place), which returns false to stop, for every digit of tensor dim d that
// both layouts cut alike or not at all. False where cuts are uneven; some digits may have been visited by then.
template <typename Visit>
bool match_digits(const LayoutGeometry& geometry, const PlacementPointers& before, const PlacementPointers& after,
                  int64_t d, Visit visit) {
  Digits digits[2];
  if (!digits_of(geometry, before, d, digits[0]) || !digits_of(geometry, after, d, digits[1])) return false;
  absl::InlinedVector<int64_t, 12> bounds = {1, geometry.size(d)};
  for (const Digits& list : digits) {
    for (const Digit& digit : list) {
      bounds.push_back(digit.stride);
      bounds.push_back(digit.stride * digit.radix);
    }
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t low = bounds[i], high = bounds[i + 1];
    if (high % low != 0) return false;
    Place owner[2] = {{-1, 0}, {-1, 0}};
    for (int k = 0; k < 2; ++k) {
      for (const Digit& digit : digits[k]) {
        if (low < digit.stride || digit.stride * digit.radix < high) continue;
        if (low % digit.stride != 0) return false;
        owner[k] = {digit.mesh_dim, digit.place * (low / digit.stride)};
      }
    }
    if (!visit(high / low, owner[0], owner[1])) return true;
  }
  return true;
}

}  // namespace dtensor::internal
