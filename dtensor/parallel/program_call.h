// What operators that follow a style or a group above autograd ask of a call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <span>

#include "dtensor/dispatch_key.h"

namespace dtensor::internal {

// Whether the program calls the operator, in forward. Below autograd an operator of the library computes.
bool is_programs_call();
// Whether the result has values computed from those of all arguments.
bool computes(const c10::OperatorHandle& op, bool is_view);
// Whether the call is elementwise on tensors of one shape, as in optimizers and averages.
bool updates_one_shape(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);
// In lists, too.
void replace_tensor(std::span<c10::IValue> args, const at::Tensor& from, const at::Tensor& to);

// Calls f(tensor) for each distributed tensor of the arguments, those in lists included.
template <typename F>
void for_each_dtensor(c10::ArrayRef<c10::IValue> args, const F& f) {
  const auto visit = [&](const c10::IValue& value) {
    if (value.isTensor() && is_dtensor(value.toTensor())) f(value.toTensor());
  };
  for (const c10::IValue& arg : args) {
    visit(arg);
    if (!arg.isTensorList() && !arg.isOptionalTensorList()) continue;
    for (const c10::IValue& element : arg.toListRef()) visit(element);
  }
}

}  // namespace dtensor::internal
