// Operators without a sharding rule: every rank computes them on whole tensors, and the results are replicated.
//
// Without communication if every tensor of the call is replicated already; else after gathering, which is counted and
// named, inside a ReplicateUnsupported scope only. A written argument keeps its layout: the whole result is sharded
// again. Results are like the local ones: tensors, undefined ones, lists, numbers; views share the memory of their
// base. All ranks draw the same random numbers. A mesh of which this process owns no rank (an abstract world's) has
// metadata only, from the meta kernel.
//
// Errors (NotImplementedError): not replicated and no such scope; a result that is sparse or quantized; an operator
// that would change the size or memory of its argument. After the last one the written argument has undefined values,
// but keeps its size.
#pragma once

#include <ATen/core/stack.h>

#include "dtensor/dispatch/internal/call_inputs.h"

namespace dtensor::internal {

void run_replicated(const OpInfo& info, const Inputs& in, torch::jit::Stack& stack);

// The first of these errors: names the call, its origin (module, composite operator, formula of backward), and
// alternatives.
[[noreturn]] void throw_missing_rule(const OpInfo& info, const Inputs& in);  // missing_rule.cc

}  // namespace dtensor::internal
