// Whether addends may be passed to an operator, depending on its arithmetic and on the dtypes of input and result. Only
// this file decides that: a rule describes the computation for all dtypes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "placement/placement.h"

namespace dtensor {

// The arithmetic on the elements of a Partial input.
enum class PartialSemantics : uint8_t {
  kCopy,  // elements are moved, or replaced by constants: every kind passes
  kRing,  // +, - and * with finite numbers: sums and averages pass, of integers too, which wrap alike before and after
  kReal,  // linear over the real numbers, with finite factors: sums and averages of floating tensors pass
  kOnce,  // one rank adds a value to its addend
  kMonotone,  // the order of floating numbers is kept (or turned), infinities and nan included: maxima and minima pass
  kShift,     // all ranks add the same finite number, without wrapping: maxima and minima of floating tensors pass
};

namespace internal {

// Whether the operator on every rank's addends of dtype `from`, reduced by `out` in dtype `to`, equals the operator on
// the reduced value. `in` and `out` are Partial. A result may have another dtype if the cast commutes with the
// reduction.
bool passes(PartialSemantics maths, const Placement& in, c10::ScalarType from, const Placement& out,
            c10::ScalarType to);

// Whether a result of dtype `to` computed from no Partial input may be the Partial `out`. Complex numbers have no
// order, bools no sum, integers no average.
bool can_leave(const Placement& out, c10::ScalarType to);

}  // namespace internal

}  // namespace dtensor
