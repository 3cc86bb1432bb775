// The time that redistributions take, for code that compares layouts and runs no plan. Implemented in plan_many.cc.
#pragma once

#include <c10/util/ArrayRef.h>

#include "plan/limits.h"
#include "plan/spec.h"

namespace dtensor {

struct Redistribution {
  SpecPtr from;
  Placements to;
};

// Estimated seconds of the plan that cached_plan_within() finds on one mesh; infinity if no route stays within the
// limits.
double seconds_to_move(const SpecPtr& from, const Placements& to, const Limits& limits = {});
// Of many tensors at once, their collectives combined as plan_many() does.
double seconds_to_move(c10::ArrayRef<Redistribution> tensors, const Limits& limits);

}  // namespace dtensor
