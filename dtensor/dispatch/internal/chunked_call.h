// Products whose rows are gathered in chunks while the product of others is computed (OverlapCommunication).
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <vector>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/decide_call.h"

namespace dtensor::internal {

// Moves the inputs of a decided mm() or addmm(), and computes: each chunk of rows while the next one is gathered. The
// local tensors of the results. nullopt, and nothing done: it is another operator, the rows are cached, other inputs
// than the rows move, or they are not gathered alone (cut_into_chunks()). REQUIRES: an OverlapCommunication scope.
std::optional<std::vector<RankTensors>> run_in_chunks(const OpInfo& info, const Decided& decided, const Inputs& in,
                                                      c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
