// Reports the work of operators to the listeners of the scope: FLOP of matrix products, bytes read and written.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

#include "mesh/device_mesh.h"
#include "propagation/decision.h"

namespace dtensor::internal {

struct Inputs;  // internal/call_inputs.h
struct OpInfo;  // op_info.h

// Of matrix products whose handler has no rule. `of_rank`: floating-point operations of the rank that does most,
// `of_one`: of a single device that does all. Nothing is reported if there were none. `op`: "aten::mm". `operand`: a
// tensor of the product, for its mesh and dtype.
void report_flops(const std::string& op, const std::string& module_path, const Spec& operand, double of_rank,
                  double of_one);
// Of operators that compute on parts by themselves: `bytes` that the rank with the largest parts reads and writes.
void report_bytes(const std::string& op, const DeviceMesh& mesh, int64_t bytes);
// The work of this call is reported by others: later, when it runs, or piece by piece.
void note_work_elsewhere();
// Of an operator that has run as `decision` says. `list_index`: WorkEvent. Cheap without listeners.
void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                 int64_t list_index = 0);

// The work of a call that no rule runs: what the operators report that it calls. If they report nothing, its arguments
// are read once and its results written once, in the layouts that they have.
class WorkWithoutRule {
 public:
  // Before the call. Cheap without listeners.
  WorkWithoutRule(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
  // After it, with the results at the end of `stack`.
  void report(const torch::jit::Stack& stack) const;

 private:
  const OpInfo& info_;
  int64_t reported_before_ = -1;  // -1: nothing to report
  int64_t bytes_ = 0;             // of arguments
  DeviceMesh mesh_;
  bool writes_ = false;  // to an argument
};

}  // namespace dtensor::internal
