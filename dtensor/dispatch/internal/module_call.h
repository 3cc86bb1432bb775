// What a call does for parameters and buffers of modules with ModuleTraits (tensor/module_traits.h): for calls with
// Inputs::has_module_traits alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "dtensor/dispatch/op_info.h"

namespace dtensor::internal {

struct Inputs;  // call_inputs.h

// Error (c10::Error): `info` computes with a tensor whose module has hooks (parallel/hook_watch.h) and another one, and
// the hooks have not run. Not in backward. An operator that reads only parameters, writes to them, takes lists of them,
// or is pointwise on tensors of one shape (an optimizer, an average, a distance from former values) does not count as
// forward.
void check_hooks_ran(const OpInfo& info, const Inputs& in);

// Replaces parameters of fully_shard() by their gathered copies, and gathers them if they are not: for operators that
// compute with a parameter and another tensor, as forward and backward do. Not for views, nor for operators that read
// or write parameters alone, or elementwise tensors of one shape, as optimizers, norms and averages do.
void use_gathered_parameters(const OpInfo& info, Inputs& in);

// After a call, whose first tensor is `from`: a cast of a parameter of fully_shard() is gathered with its group.
void keep_cast_of_parameter(const OpInfo& info, const at::Tensor& from, c10::ArrayRef<c10::IValue> results);

}  // namespace dtensor::internal
