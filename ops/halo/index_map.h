// Which element of a dim stands at each place of another one: how operators that move elements along a dim are told to
// the halo exchange (halo/plan.h). Pure. Internal to ops/.
//
//   rolled(5, 2);       // places 0-1 show elements 3-4, places 2-4 elements 0-2
//   padded(5, 1, 2);    // of 8 places the first and the last two show nothing
//   sliced(9, 8, 3, -2) // elements 8, 6, 4
#pragma once

#include <cstdint>
#include <vector>

#include "placement/geometry.h"

namespace dtensor {

// Places `place`, `place + 1`, ... show elements `source`, `source + step`, ...
struct Stretch {
  int64_t place = 0, size = 0, source = 0, step = 1;
  friend bool operator==(const Stretch&, const Stretch&) = default;
};

// Stretches ascend and share no place; places of no stretch show nothing.
struct IndexMap {
  int64_t size = 0;  // places
  std::vector<Stretch> stretches;

  // Every place shows the element of the same index, and there are no others. `n`: elements.
  bool is_identity(int64_t n) const;
};

// Of n elements:
IndexMap rolled(int64_t n, int64_t shift);
IndexMap flipped(int64_t n);
// `count` of them from `start` on. REQUIRES: they are there.
IndexMap sliced(int64_t n, int64_t start, int64_t count, int64_t step);
// With so many places more before and after; fewer where negative. REQUIRES: n + before + after >= 0.
IndexMap padded(int64_t n, int64_t before, int64_t after);
// The same, with something at all places. REQUIRES: 0 <= before, after; those of reflected() < n, of circular() <= n,
// and n > 0.
IndexMap reflected(int64_t n, int64_t before, int64_t after);
IndexMap replicated(int64_t n, int64_t before, int64_t after);
IndexMap circular(int64_t n, int64_t before, int64_t after);

// What `places` and a stretch have in common, or what a rank holds of it: elements `first`, ... of the stretch, which
// stand at `index`, `index + step`, ... of the rank's tensor.
struct Segment {
  int64_t stretch = 0;
  int64_t first = 0, size = 0;
  int64_t index = 0, step = 1;
};
using Segments = std::vector<Segment>;

// Of a rank that has the elements `held`. None is empty.
Segments segments_held(const IndexMap& map, const Runs& held);
// Of a rank that wants the places `wanted`; step is 1.
Segments segments_wanted(const IndexMap& map, const Runs& wanted);

}  // namespace dtensor
