// What an operator's matrix products take, told to who listens. Internal.
#pragma once

#include "dtensor/dispatch/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor {

// REQUIRES: the operator has run as `decision` says. Cheap where nobody listens.
void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor
