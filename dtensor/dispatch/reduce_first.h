// Redistributes tensors before an operator on them is decided: Partial ones are reduced, and constants gathered for
// operators that are called repeatedly with them. Copies that exist already replace them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "dtensor/dispatch/op_info.h"
#include "placement/placement.h"

namespace dtensor::internal {

struct Inputs;  // internal/call_inputs.h

// In the tensor lists that a call reads, replaces sums and averages that are Partial by reduced tensors, if there are
// several: one reduction for all of a mesh; cached reductions are reused. Communicates, by name of operator and
// argument.
void reduce_lists(const OpInfo& info, torch::jit::Stack& stack);

// Redistributes tensors[k], the argument args[k] of the operator, to the layout to[k]; all are on one mesh. One
// collective for all, whose results are cached, so that the next call needs none. Differentiable: the gradients come
// back in their own layouts, so that those of many calls are added up before they are redistributed to a parameter's
// layout.
std::vector<at::Tensor> gather_for_reuse(const OpInfo& info, c10::ArrayRef<size_t> args, at::TensorList tensors,
                                         c10::ArrayRef<Placements> to);

// Replaces parameters by their gathered copies (use_gathered_parameters() in internal/module_call.h), and Partial
// tensors by their cached reduced tensors, so that results computed from them need no reduction of their own. Not for
// view operators, since views share the cache, nor for written arguments.
void use_copies(const OpInfo& info, c10::ArrayRef<c10::IValue> args, Inputs& in);

}  // namespace dtensor::internal
