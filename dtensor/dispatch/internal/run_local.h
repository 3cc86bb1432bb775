// The local computation of an operator's call, on each rank that this process owns.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <vector>

#include "comm/rank_tensors.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor {
struct Decision;  // propagation/decision.h
}  // namespace dtensor

namespace dtensor::internal {

struct LocalCalls {
  const OpInfo& info;
  const Decision& decision;
  const Inputs& in;
  c10::ArrayRef<c10::IValue> args;
  const std::vector<RankTensors>& locals;  // of the inputs, as the decision lays them out
  bool check;                              // that results have the shapes and dtypes that the decision says
};

// outputs[k][r]: output k on local rank r. The ranks' parts of the inputs may be on several devices
// (host_parts.h). Errors: those of the operator; a result that `check` finds wrong.
std::vector<RankTensors> run_local(const LocalCalls& calls);

// What an error of the operator itself is to add, which knows neither the distributed tensors nor the rank:
// "in aten::embedding(f32[12, 6](R), i64[8](S(0))), on the parts of rank 1". `r`: index into mesh.local_ranks().
std::string on_parts_of(const std::string& call, const DeviceMesh& mesh, size_t r);

}  // namespace dtensor::internal
