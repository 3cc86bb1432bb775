// Whether rounding alone explains a difference.
#pragma once

#include "tests/fuzz/program.h"
#include "tests/fuzz/run.h"

namespace dtensor::fuzz {

// True if plain runs, disturbed as a distributed run may be, differ from one another by more than the tolerance in the
// tensor or gradient of the outcome: floor(), a comparison or a cancellation amplified a small difference. After every
// step, disturbs the last digits of numbers with many digits; for tensors that are Partial in the distributed run, the
// last digits of the addends, and the signs of zeros in them and in results computed from them; the signs of NaN. An
// error of the library is unstable if such a plain run throws it for the same reason.
bool unstable(const Program& program, const Outcome& outcome);

}  // namespace dtensor::fuzz
