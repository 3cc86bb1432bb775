// The error of an operator that has no sharding rule and gets tensors that are not whole on every rank. Internal.
#pragma once

#include "dtensor/dispatch/internal/call_inputs.h"

namespace dtensor {

// NotImplementedError: says which call, from where (module, composite operator, formula of backward), and how to go on.
[[noreturn]] void throw_missing_rule(const OpInfo& info, const Inputs& in);

}  // namespace dtensor
