// The error of an operator that has no sharding rule and gets tensors that are not replicated.
#pragma once

#include "dtensor/dispatch/internal/call_inputs.h"

namespace dtensor::internal {

// NotImplementedError: names the call, its origin (module, composite operator, formula of backward), and alternatives.
[[noreturn]] void throw_missing_rule(const OpInfo& info, const Inputs& in);

}  // namespace dtensor::internal
