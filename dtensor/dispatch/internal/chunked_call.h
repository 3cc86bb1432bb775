// In an OverlapCommunication scope: a matrix product whose rows an operator gathers, in chunks of rows.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <vector>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor::internal {

// Moves the inputs of a decided mm() or addmm(), and computes: each chunk of rows while the next one is gathered. The
// local tensors of the results. nullopt, and nothing done: outside of the scope, the rows are cached, or other inputs
// than the rows move, or they are not gathered alone (cut_into_chunks()).
std::optional<std::vector<RankTensors>> run_in_chunks(const OpInfo& info, const Decision& decision, const Inputs& in,
                                                      c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
