// Redistributes the inputs of a call to the layouts in which it is computed.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <vector>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor::internal {

struct InputsOfCall {
  const OpInfo& info;
  const Decision& decision;
  const Inputs& in;
};

// The local tensors of every input, after the plans of `decision`; empty for absent ones. Uses cached layouts, and
// moves the others in as few collectives as possible; written tensors whose layout is free change their layout as part
// of it. Communicates; by name of operator and arguments.
std::vector<RankTensors> move_inputs(const OpInfo& info, const Decision& decision, const Inputs& in);
// The same for many calls at once.
std::vector<std::vector<RankTensors>> move_inputs(c10::ArrayRef<InputsOfCall> calls);

// In an OverlapCommunication scope: moves the inputs of a decided mm() or addmm(), and computes: each chunk of rows
// while the next one is gathered. The local tensors of the results. nullopt, and nothing done: outside of the scope,
// the rows are cached, or other inputs than the rows move, or they are not gathered alone (cut_into_chunks()).
std::optional<std::vector<RankTensors>> run_in_chunks(const OpInfo& info, const Decision& decision, const Inputs& in,
                                                      c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
