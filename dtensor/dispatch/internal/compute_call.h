// Computes a decided call by the local operators, at once or, in backward, later, and wraps the results.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <vector>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/decide_call.h"

namespace dtensor::internal {

// The results of the local operators, from inputs that were moved (move_inputs()): outputs[k][i] is output k on local
// rank i. Checks those of a new decision, caches it, and reports the work.
// Errors: those of the operator; the rule says otherwise (c10::Error).
std::vector<RankTensors> compute_call(const OpInfo& info, const Decided& decided, const Inputs& in,
                                      c10::ArrayRef<c10::IValue> args, const std::vector<RankTensors>& locals);

// What an error of the operator itself is to add, which has neither the distributed tensors nor the rank:
// "in aten::embedding(f32[12, 6](R), i64[8](S(0))), on the parts of rank 1". `r`: index into mesh.local_ranks().
std::string on_parts_of(const std::string& call, const DeviceMesh& mesh, size_t r);

// Whether the CallHook defers the call: then the result has replaced the arguments on the stack.
bool defer_call(const OpInfo& info, const Decided& decided, const Inputs& in, torch::jit::Stack& stack);

// Replaces the arguments on the stack by the results, in the form that the schema requires: tensors, or lists of
// tensors; written arguments are returned themselves. `outputs`: those of compute_call().
void wrap_results(const OpInfo& info, const Decision& decision, const Inputs& in, std::vector<RankTensors> outputs,
                  torch::jit::Stack& stack);

}  // namespace dtensor::internal
