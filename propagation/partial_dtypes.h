// Whether addends may be handed to an operator: decided from what it does with them and the dtypes on either side. That
// is decided here and nowhere else: a rule says what is computed, never for which dtypes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "placement/placement.h"

namespace dtensor {

// What becomes of the elements of a Partial input.
enum class Maths : uint8_t {
  kCopy,  // they are moved, or constants take their place: every kind passes
  kRing,  // +, - and * with finite numbers: sums and averages pass, of integers too, which wrap alike before and after
  kReal,  // linear over the real numbers, with finite factors: sums and averages of floating tensors pass
  kOnce,  // one rank adds something to its addend, whatever that is
  kMonotone,  // the order of floating numbers is kept (or turned), infinities and nan included: maxima and minima pass
  kShift,     // all ranks add the same finite number, without wrapping: maxima and minima of floating tensors pass
};

// Is the operator on every rank's addends of dtype `from`, reduced as `out` says in dtype `to`, the operator on the
// reduced value? `in` and `out` are Partial. A result may be of another dtype where the cast commutes with the
// reduction.
bool passes(Maths maths, const Placement& in, c10::ScalarType from, const Placement& out, c10::ScalarType to);

// May a result of dtype `to` that is made of no Partial input be left as the Partial `out`? Complex numbers have no
// order, bools no sum, integers no average.
bool can_leave(const Placement& out, c10::ScalarType to);

}  // namespace dtensor
