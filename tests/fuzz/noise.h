// Whether rounding alone explains a difference.
#pragma once

#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

// True if plain runs whose results are disturbed in their last digits after every step differ from one another by more
// than the tolerance, in a tensor (order 0) or in gradients up to `order`: floor(), a comparison or a cancellation made
// much of little.
bool unstable(const Program& program, int order);

}  // namespace dtensor::fuzz
