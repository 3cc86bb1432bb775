// The key of a call in the strategy cache.
#pragma once

#include <ATen/core/ivalue.h>

#include "dtensor/dispatch/internal/call_inputs.h"

namespace dtensor::internal {

// The operator, specs, context, and the other arguments as far as decisions depend on them.
CacheKey make_key(const OpInfo& info, const OpInfo::Resolved& resolved, const Inputs& in,
                  c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
