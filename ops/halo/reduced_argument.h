// Reduces a Partial argument for a handler that moves or adds up elements.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "ops/support/arguments.h"
#include "ops/support/movement.h"

namespace dtensor::internal {

// The argument `name`, a distributed tensor. If it is Partial in a way that may not pass, it is reduced, also on the
// stack.
at::Tensor reduced_argument(const c10::OperatorHandle& op, Arguments& args, const char* name, Passing passing);

}  // namespace dtensor::internal
