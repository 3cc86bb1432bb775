#include "propagation/partial_dtypes.h"

namespace dtensor::internal {
namespace {

bool floating(c10::ScalarType t) { return c10::isFloatingType(t); }
bool field(c10::ScalarType t) { return c10::isFloatingType(t) || c10::isComplexType(t); }

// Half precision overflows beyond 65504, and the addends of a number may overflow although the number does not.
bool narrow(c10::ScalarType t) {
  const c10::ScalarType real = c10::isComplexType(t) ? c10::toRealValueType(t) : t;
  return real != c10::kBFloat16 && floating(real) && c10::elementSize(real) <= 2;
}

// The sum of the casts equals the cast of the sum, up to rounding.
bool cast_keeps_sums(c10::ScalarType from, c10::ScalarType to) {
  if (from == to) return true;
  if (to == c10::kComplexHalf) return false;  // hardly any kernels: an average of it could not be reduced
  return field(from) && field(to) && c10::elementSize(to) > 1 && (!narrow(to) || narrow(from));
}

// Whether the cast is monotone.
bool cast_keeps_order(c10::ScalarType from, c10::ScalarType to) {
  if (from == to) return !c10::isComplexType(to);
  if (c10::isComplexType(from) || c10::isComplexType(to)) return false;
  if (floating(to)) return c10::elementSize(to) > 1;
  if (floating(from) || to == c10::kBool) return false;
  if (from == c10::kBool) return true;
  const bool is_signed = c10::isSignedType(to);
  if (c10::isSignedType(from) && !is_signed) return false;
  const bool gains_sign = is_signed && !c10::isSignedType(from);
  return c10::elementSize(to) > c10::elementSize(from) ||
         (c10::elementSize(to) == c10::elementSize(from) && !gains_sign);
}

bool is_order(ReduceOp op) { return op == ReduceOp::kMax || op == ReduceOp::kMin; }

bool copies(ReduceOp op, c10::ScalarType from, c10::ScalarType to) {
  if (from == to) return !(is_order(op) && c10::isComplexType(to));
  if (is_linear(op)) return cast_keeps_sums(from, to);
  return is_order(op) && cast_keeps_order(from, to);
}

bool is_linear_for(PartialSemantics maths, ReduceOp op, c10::ScalarType from, c10::ScalarType to) {
  if (from == c10::kBool || to == c10::kBool || !is_linear(op)) return false;
  if (field(from) && field(to)) return cast_keeps_sums(from, to);
  return maths != PartialSemantics::kReal && op == ReduceOp::kSum && from == to;
}

}  // namespace

bool passes(PartialSemantics maths, const Placement& in, c10::ScalarType from, const Placement& out,
            c10::ScalarType to) {
  const ReduceOp op = in.reduce_op();
  const bool same = op == out.reduce_op();
  switch (maths) {
    case PartialSemantics::kCopy:
      if (same) return copies(op, from, to);
      [[fallthrough]];  // another kind: only the order can be preserved
    case PartialSemantics::kMonotone:
      return is_order(op) && is_order(out.reduce_op()) && floating(from) && floating(to);
    case PartialSemantics::kShift:
      return same && is_order(op) && floating(from) && floating(to);
    case PartialSemantics::kRing:
    case PartialSemantics::kReal:
    case PartialSemantics::kOnce:
      return same && is_linear_for(maths, op, from, to);
  }
  return false;
}

bool can_leave(const Placement& out, c10::ScalarType to) {
  switch (out.reduce_op()) {
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !c10::isComplexType(to);
    case ReduceOp::kAvg:
      return field(to);
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return to != c10::kBool;
    case ReduceOp::kNorm2:
      return c10::isFloatingType(to);
  }
  return false;
}

}  // namespace dtensor::internal
