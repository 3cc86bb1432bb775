// The key of a call in the strategy cache.
#pragma once

#include <ATen/core/ivalue.h>

#include "dtensor/dispatch/internal/call_inputs.h"

namespace dtensor::internal {

// Its beginning: all but the arguments. For calls whose arguments are not on a stack; per tensor the id of its spec
// follows, per other argument one of the following.
void begin_key(CacheKey& key, const OpInfo& info, const OpInfo::Resolved& resolved, const CallContext& context);
void append_argument(CacheKey& key, const OpInfo::Resolved& resolved, size_t i, const c10::IValue& value);
// As append_argument() for a list of ints on whose values the decision depends.
void append_ints(CacheKey& key, c10::ArrayRef<int64_t> ints);

// The operator, specs, context, and the other arguments as far as decisions depend on them.
CacheKey make_key(const OpInfo& info, const OpInfo::Resolved& resolved, const Inputs& in,
                  c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
