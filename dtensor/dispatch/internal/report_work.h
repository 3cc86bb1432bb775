// Reports the FLOP of an operator's matrix products to listeners.
#pragma once

#include "dtensor/dispatch/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor::internal {

// REQUIRES: the operator has run as `decision` says. Cheap without listeners.
void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
