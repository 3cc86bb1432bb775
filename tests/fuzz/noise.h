// Whether rounding alone explains a difference.
#pragma once

#include "tests/fuzz/program.h"
#include "tests/fuzz/run.h"

namespace dtensor::fuzz {

// True if plain runs that are disturbed as a distributed run may be differ from one another by more than the tolerance
// in the tensor or gradient that the outcome is about: floor(), a comparison or a cancellation made much of little.
// Disturbed are, after every step, the last digits of what is no number of few digits; in what the distributed run
// holds as addends the last digits of those, and the signs of zeros in it and in what comes of it; the signs of NaN.
// What the library refused is unstable if such a plain run is refused for the same reason.
bool unstable(const Program& program, const Outcome& outcome);

}  // namespace dtensor::fuzz
