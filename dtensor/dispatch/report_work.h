// Reports the work of operators to the listeners of the scope: FLOP of matrix products, bytes read and written.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <string>

#include "mesh/device_mesh.h"
#include "propagation/decision.h"

namespace dtensor::internal {

struct Inputs;  // internal/call_inputs.h
struct OpInfo;  // op_info.h

// Of matrix products whose handler has no rule. `of_rank`: floating-point operations of the rank that does most,
// `of_one`: of a single device that does all. Nothing is reported if there were none. `op`: "aten::mm".
void report_flops(const std::string& op, const std::string& module_path, const DeviceMesh& mesh, double of_rank,
                  double of_one);
// Of an operator that has run as `decision` says. Cheap without listeners.
void report_work(const OpInfo& info, const Decision& decision, const Inputs& in, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
