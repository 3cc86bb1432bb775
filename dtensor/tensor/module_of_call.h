// The module that reports name for a call of an operator. C++ modules have no forward hooks, so it follows from the
// parameters that operators read, and from the autograd graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>

#include <string>

#include "comm/comm_event.h"

namespace dtensor::internal {

// For a report on a call with these inputs, on the thread that makes the call:
//   "layers.0.attn.wq"        a parameter or buffer of that module is an input, itself, transposed, reshaped or cast
//   the path of the scope     else, in a ModulePath
//   "after layers.0.attn.wq"  else: of the operators from which the inputs were computed, the last that read a
//                             parameter that requires a gradient read one of that module. By the order of functions
//                             made on one thread, and up to 1024 functions back
//   ""                        else, as where gradients are not recorded
// In backward the call counts as one of the operator whose gradient is computed. Only metadata is read. If nothing
// listens to this thread, the parameters among the inputs and the scope decide alone.
std::string module_of_call(c10::ArrayRef<at::Tensor> inputs);
// The cause of communication that a call of `op` with these inputs needs for its `argument` ("": for none).
CommCause call_cause(const c10::OperatorHandle& op, std::string argument, c10::ArrayRef<at::Tensor> inputs);

}  // namespace dtensor::internal
