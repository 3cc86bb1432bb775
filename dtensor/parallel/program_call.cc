#include "dtensor/parallel/program_call.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "comm/scope.h"

namespace dtensor::internal {

bool is_programs_call() {
  return !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView) && !in_backward();
}

bool computes(const c10::OperatorHandle& op, bool is_view) {
  const c10::FunctionSchema& schema = op.schema();
  if (is_view || schema.is_mutable() || schema.returns().empty() || schema.name() == "aten::type_as") return false;
  const c10::Argument& result = schema.returns()[0];
  return result.type()->kind() == c10::TypeKind::TensorType && result.alias_info() == nullptr;
}

bool updates_one_shape(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  if (!op.hasTag(at::Tag::pointwise) && op.schema().name() != "aten::isclose") return false;
  bool one_shape = true;
  at::Tensor first;
  for_each_dtensor(args, [&](const at::Tensor& t) {
    if (t.dim() == 0) return;
    if (first.defined() && t.sizes() != first.sizes()) one_shape = false;
    first = t;
  });
  return one_shape;
}

void replace_tensor(std::span<c10::IValue> args, const at::Tensor& from, const at::Tensor& to) {
  for (c10::IValue& arg : args) {
    if (arg.isTensor() && arg.toTensor().is_same(from)) {
      arg = to;
    } else if (arg.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : arg.toTensorVector()) list.push_back(t.is_same(from) ? to : t);
      arg = list;
    } else if (arg.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& t : arg.toOptionalTensorVector()) list.push_back(t && t->is_same(from) ? to : t);
      arg = list;
    }
  }
}

}  // namespace dtensor::internal
