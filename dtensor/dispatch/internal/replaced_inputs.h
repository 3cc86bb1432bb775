// Inputs of a call that are replaced, before the call is decided, by copies in another layout.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

// Replaces Partial tensors by their cached reduced tensors, so that results computed from them need no reduction of
// their own. Not for view operators, since views share the cache, nor for written arguments.
void use_reduced_copies(const OpInfo& info, c10::ArrayRef<c10::IValue> args, Inputs& in);

// Replaces parameters of fully_shard() by their gathered copies, and gathers them if they are not: for operators that
// compute with a parameter and another tensor, as forward and backward do. Not for views, nor for operators that read
// or write parameters alone, or elementwise tensors of one shape, as optimizers, norms and averages do.
void use_gathered_parameters(const OpInfo& info, Inputs& in);

// After a call, whose first tensor is `from`: a cast of a parameter of fully_shard() is gathered with its group.
void note_cast_of_parameter(const OpInfo& info, const at::Tensor& from, c10::ArrayRef<c10::IValue> results);

// Whether the call is elementwise on tensors of one shape, as in optimizers and averages.
bool is_update(const OpInfo& info, const Inputs& in);  // check_hooks.cc

}  // namespace dtensor::internal
