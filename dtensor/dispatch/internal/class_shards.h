// What LossParallel forbids (scopes.h).
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor::internal {

// With ScopeHints::keep_class_shards. Error (c10::Error): the decision moves an input with scores, or with their
// gradient, whose classes (OpRule::class_dim) are sharded, away from these shards. The text names operator, argument,
// layouts and bytes.
void check_class_shards(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                        const Decision& decision);

}  // namespace dtensor::internal
