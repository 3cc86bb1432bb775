// Looks for tensors among the arguments of a call, or replaces them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>

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

// The value with each(t) in place of every tensor t, those in lists included, except for undefined and missing ones.
template <typename F>
c10::IValue with_tensors(const c10::IValue& value, const F& each) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(each(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(each(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      list.push_back(t && t->defined() ? std::optional(each(*t)) : std::nullopt);
    return list;
  }
  return value;
}

}  // namespace dtensor::internal
