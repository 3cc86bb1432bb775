// Redistributes the inputs of a call to the layouts in which it is computed.
#pragma once

#include <c10/util/ArrayRef.h>

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

}  // namespace dtensor::internal
