// Where tensors in host memory (tensor/host_parts.h) and tensors on GPUs meet in one call.
#pragma once

#include <vector>

#include "comm/rank_tensors.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// The parts of the inputs on the GPUs, or in host memory if the call writes to a tensor there; `locals` themselves
// where all are in one place. Numbers stay where they are. Error (c10::Error): the call writes to both.
std::vector<RankTensors> on_one_device(const OpInfo& info, const Inputs& in, std::vector<RankTensors> locals);

}  // namespace dtensor::internal
