// Elementwise operators and products, computed in other loops. LibTorch's loops over whole vectors and over what is
// left of them do not always agree (sinh close to where it overflows, hardshrink of NaN), so what it gives depends on
// where in memory an element lies, and that is another place in a part than in the whole. Products that overflow or
// vanish on their way come to another end in another order, and ranks multiply in another one: 1e200 * 1e200 * 0 is
// NaN, 1e200 * 0 * 1e200 is 0. Sums of what cancels, of what is rounded, are zero in one order and a last digit in
// another: of three equal numbers less their mean both is left, and corrcoef() divides it by itself. Which half of an
// infinite complex number is NaN depends on how its product was computed, and what looks at the halves sees it.
#pragma once

#include "tests/fuzz/intercept.h"

namespace dtensor::fuzz {

enum class Loops {
  kElements,       // each element by a call of its own
  kVectors,        // each element as one of a vector's worth of its like
  kSmallestFirst,  // prod(): one factor after another, by magnitude
  kLargestFirst,
  kCancelled,       // sums of which only rounding is left are zero, as are variances
  kNaNHalves,       // both halves of complex numbers that are not finite are NaN
  kInfiniteHalves,  // or infinite
};

// For an Interception: all elementwise operators, all products, all sums or all complex results give what those loops
// do.
BeforeCall in_other_loops(Loops loops);

}  // namespace dtensor::fuzz
