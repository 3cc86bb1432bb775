// Elementwise operators and products, computed in other loops. LibTorch's vectorized loops and their tails do not
// always agree (sinh close to overflow, hardshrink of NaN), so a result depends on the element's position in memory,
// which differs between a part and the whole. Products that overflow or underflow in between depend on the order, and
// ranks multiply in another one: 1e200 * 1e200 * 0 is NaN, 1e200 * 0 * 1e200 is 0. Sums of cancelling rounded numbers
// are zero in one order and a last digit in another: both occur for three equal numbers minus their mean, and
// corrcoef() divides it by itself. Which half of an infinite complex number is NaN depends on how its product was
// computed, and operators on the halves depend on it.
#pragma once

#include "tests/fuzz/intercept.h"

namespace dtensor::fuzz {

enum class Loops {
  kElements,       // each element by a separate call
  kVectors,        // each element as one of a vector of copies
  kSmallestFirst,  // prod(): one factor after another, by magnitude
  kLargestFirst,
  kCancelled,       // sums that are only rounding are zero, as are variances
  kNaNHalves,       // both halves of complex numbers that are not finite are NaN
  kInfiniteHalves,  // or infinite
};

// For an Interception: all elementwise operators, all products, all sums or all complex results are computed by those
// loops.
BeforeCall in_other_loops(Loops loops);

}  // namespace dtensor::fuzz
