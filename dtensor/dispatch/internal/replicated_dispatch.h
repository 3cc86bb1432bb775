// Operators without a sharding rule: every rank computes them on whole tensors, and the results are replicated.
// Internal.
//
// Without communication where every tensor of the call is whole on every rank anyway; else after gathering, which is
// counted and named, inside a ReplicateUnsupported scope only. What the operator writes to keeps its layout: the
// written whole is cut up again. Results are what the local ones are: tensors, undefined ones, lists, numbers; views
// share the memory of what they are of. All ranks draw the same random numbers. A mesh of which this process owns no
// rank (an abstract world's) has metadata only, from the meta kernel.
//
// Errors (NotImplementedError): not whole and no such scope; a result that is sparse or quantized; an operator that
// would change the size or memory of its argument. After the last one what is written is undefined, but of its own
// size.
#pragma once

#include <ATen/core/stack.h>

#include "dtensor/dispatch/internal/call_inputs.h"

namespace dtensor {

void run_without_rule(const OpInfo& info, const Inputs& in, torch::jit::Stack& stack);

}  // namespace dtensor
