// The inputs of a call, in the layouts that it is computed in. Internal.
#pragma once

#include <c10/util/ArrayRef.h>

#include <vector>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "propagation/decision.h"

namespace dtensor {

struct InputsOfCall {
  const OpInfo& info;
  const Decision& decision;
  const Inputs& in;
};

// The parts of every input, after the plans of `decision`; empty for absent ones. What was reduced before is not again,
// what has to move moves in as few collectives as can be, and free tensors that are written to change their layout with
// that. Communicates; by name of operator and arguments.
std::vector<RankTensors> move_inputs(const OpInfo& info, const Decision& decision, const Inputs& in);
// Of many calls, as those of one.
std::vector<std::vector<RankTensors>> move_inputs(c10::ArrayRef<InputsOfCall> calls);

}  // namespace dtensor
