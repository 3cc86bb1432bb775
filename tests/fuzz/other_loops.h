// Elementwise operators, computed in other loops. LibTorch's loops over whole vectors and over what is left of them do
// not always agree (sinh close to where it overflows, hardshrink of NaN), so what it gives depends on where in memory
// an element lies, and that is another place in a part than in the whole.
#pragma once

#include "tests/fuzz/intercept.h"

namespace dtensor::fuzz {

enum class Loops {
  kElements,  // each element by a call of its own
  kVectors,   // each element as one of a vector's worth of its like
};

// For an Interception: all elementwise operators give what those loops do.
BeforeCall in_other_loops(Loops loops);

}  // namespace dtensor::fuzz
