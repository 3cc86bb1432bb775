// The arguments of a call on the stack, by name.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

#include "placement/valid_dim.h"

namespace dtensor::internal {

// Valid while the arguments are on the stack.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : schema_(op.schema()), values_(stack.data() + stack.size() - schema_.arguments().size()) {}

  // None where this overload has no such argument.
  const c10::IValue& operator[](const char* name) const {
    static const c10::IValue none;
    const auto i = schema_.argumentIndexWithName(name);
    return i ? values_[*i] : none;
  }
  // Replaces the argument on the stack. REQUIRES: there is such an argument.
  void set(const char* name, c10::IValue value) {
    const auto i = schema_.argumentIndexWithName(name);
    TORCH_INTERNAL_ASSERT(i, schema_.name(), " has no argument ", name);
    values_[*i] = std::move(value);
  }
  at::Tensor tensor(const char* name) const { return (*this)[name].toTensor(); }
  double number(const char* name) const { return (*this)[name].toScalar().toDouble(); }
  std::optional<at::Generator> generator() const { return (*this)["generator"].toOptional<at::Generator>(); }
  // The tensor that an out= form writes to; undefined for other forms.
  at::Tensor out() const {
    const size_t last = schema_.arguments().size() - 1;
    return schema_.arguments()[last].is_out() ? values_[last].toTensor() : at::Tensor();
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::IValue* const values_;
};

// Undefined where an argument is None.
inline at::Tensor optional_tensor(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// The dim in an argument, counted from the front. nullopt: a tensor of `ndim` dims has no such dim, and the operator
// itself reports the error.
inline std::optional<int64_t> valid_dim(const c10::IValue& dim, int64_t ndim) {
  return dim.isInt() ? valid_dim(dim.toInt(), ndim) : std::nullopt;
}

// Ends a call: pops its arguments from the stack and pushes `results`.
inline void return_tensors(const c10::OperatorHandle& op, torch::jit::Stack& stack, std::vector<at::Tensor> results) {
  torch::jit::drop(stack, op.schema().arguments().size());
  for (at::Tensor& t : results) stack.emplace_back(std::move(t));
}

}  // namespace dtensor::internal
