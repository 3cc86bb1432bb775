// Maps each place of a dim to the element of another dim that it shows: the description of operators that move elements
// along a dim for the halo exchange (halo/plan.h). Pure.
//
//   rolled(5, 2);       // places 0-1 show elements 3-4, places 2-4 elements 0-2
//   padded(5, 1, 2);    // of 8 places the first and the last two show nothing
//   sliced(8, 3, -2);   // places 0-2 show elements 8, 6, 4
#pragma once

#include <cstdint>
#include <vector>

#include "placement/geometry.h"

namespace dtensor::internal {

// Places `place`, `place + 1`, ... show elements `source`, `source + step`, ...
struct Stretch {
  int64_t place = 0, size = 0, source = 0, step = 1;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

// Stretches ascend and share no place; places outside all stretches show nothing.
struct IndexMap {
  int64_t size = 0;  // places
  std::vector<Stretch> stretches;

  // Whether every place shows the element of the same index, and there are no other places. `n`: elements.
  bool is_identity(int64_t n) const;
};

// `count` elements from `start` on. REQUIRES: the dim has these elements.
IndexMap sliced(int64_t start, int64_t count, int64_t step);
// Maps from n elements:
IndexMap rolled(int64_t n, int64_t shift);
IndexMap flipped(int64_t n);
// With `before` and `after` places added; removed where negative. REQUIRES: n + before + after >= 0.
IndexMap padded(int64_t n, int64_t before, int64_t after);
// The same, but all places show an element. REQUIRES: 0 <= before, after; both < n for reflected(), <= n for
// circular(), and n > 0.
IndexMap reflected(int64_t n, int64_t before, int64_t after);
IndexMap replicated(int64_t n, int64_t before, int64_t after);
IndexMap circular(int64_t n, int64_t before, int64_t after);

// The common elements of `places` and a stretch, or of a rank's elements and a stretch: elements `first`, ... of the
// stretch, at `index`, `index + step`, ... of the rank's tensor.
struct Segment {
  int64_t stretch = 0;
  int64_t first = 0, size = 0;
  int64_t index = 0, step = 1;
};
using Segments = std::vector<Segment>;

// For a rank that holds the elements `held`. No segment is empty.
Segments segments_held(const IndexMap& map, const IndexRanges& held);
// For a rank that needs the places `wanted`; step is 1.
Segments segments_wanted(const IndexMap& map, const IndexRanges& wanted);

}  // namespace dtensor::internal
