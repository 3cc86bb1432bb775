// Looks for a tensor among the arguments of a call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace dtensor::internal {

// Whether `is_wanted` holds for one of the tensors, those in lists included; asks in the order of the arguments. Some
// may be undefined.
template <typename Predicate>
bool any_tensor(c10::ArrayRef<c10::IValue> args, const Predicate& is_wanted) {
  for (const c10::IValue& arg : args) {
    if (arg.isTensor() && is_wanted(arg.toTensor())) return true;
    if (!arg.isList()) continue;
    for (const c10::IValue& element : arg.toListRef()) {
      if (element.isNone()) continue;
      if (!element.isTensor()) break;  // a list of numbers
      if (is_wanted(element.toTensor())) return true;
    }
  }
  return false;
}

}  // namespace dtensor::internal
