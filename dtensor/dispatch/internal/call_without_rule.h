// Calls that no rule decides: of operators with handlers, of composite operators, and of others without a rule.
#pragma once

#include <ATen/core/stack.h>

#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// Runs the handler, or else run_without_rule(), and reports the work (report_work.h).
void dispatch_without_rule(const OpInfo& info, torch::jit::Stack& stack);
// Runs the code of a composite operator; any other operator is run replicated (replicated_dispatch.h).
void run_without_rule(const OpInfo& info, torch::jit::Stack& stack);

}  // namespace dtensor::internal
