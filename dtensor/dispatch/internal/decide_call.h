// Decides a call: by the strategy cache, or, if it does not have the call's key, by propagate().
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <memory>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor::internal {

class StepDecider;  // tensor/step_decider.h

// The beginning of a key. For calls whose arguments are not on a stack; the context follows, then per tensor the id of
// its spec, per other argument one of the following.
void begin_key(CacheKey& key, const OpInfo::Resolved& resolved);
void append_argument(CacheKey& key, const OpInfo::Resolved& resolved, size_t i, const c10::IValue& value);
// As append_argument() for a number.
void append_number(CacheKey& key, const OpInfo::Resolved& resolved, size_t i, const at::Scalar& number);
// As append_argument() for a list of ints on whose values the decision depends.
void append_ints(CacheKey& key, c10::ArrayRef<int64_t> ints);

struct Decided {
  std::shared_ptr<const Decision> decision;
  bool made_now = false;  // not cached yet
  CacheKey key;           // of a new decision
};

// `decider`: decides in place of this library; null: none. Errors: as propagate(); the strategy cache is frozen; in a
// LossParallel scope (c10::Error), the decision moves scores away from their shards of classes: the text names
// operator, argument, layouts and bytes.
Decided decide_call(const OpInfo& info, const OpInfo::Resolved& resolved, const Inputs& in,
                    c10::ArrayRef<c10::IValue> args, StepDecider* decider);
// Caches a new decision. Call it once the first results have passed their check.
void keep_decision(const Inputs& in, const Decided& decided);

}  // namespace dtensor::internal
