#include "dtensor/dispatch/internal/composite_dispatch.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>

#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/parallel/applied_style.h"
#include "dtensor/parallel/param_dtype.h"
#include "dtensor/tensor/above_autograd.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// In a MeshScope with plain arguments: tensors made by the operator's code stay plain.
void run_on_plain(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  keys = keys & kBelowThatKey;
  if (CompositeOpScope::current() != nullptr) return op.redispatchBoxed(keys, stack);
  const c10::impl::ExcludeDispatchKeyGuard plain(kBothDTensorKeys);
  op.redispatchBoxed(keys.remove(kDTensorKey), stack);
}

}  // namespace

bool needs_handler(const OpInfo& info, const at::Tensor& t) {
  if (info.handler == nullptr) return false;
  return !info.handles_uneven_only || (is_dtensor(t) && spec_of(t)->has_uneven_shards());
}

c10::DispatchKeySet keys_of_own_code(const OpInfo& info, c10::DispatchKeySet keys) {
  keys = keys & kBelowThatKey;
  // Below autograd the next kernel would be the handler, one call further inside. Without keys it is the operator's
  // code.
  const bool meets_handler = info.handles_uneven_only && keys.highestPriorityTypeId() == kDTensorKey;
  return meets_handler ? c10::DispatchKeySet() : keys;
}

at::Tensor distribute_result(const CompositeOpScope& scope, at::Tensor t) {
  if (!t.defined() || is_dtensor(t) || !scope.is_outermost() || !scope.makes_plain()) return t;
  if (t.is_meta() && scope.mesh().world().has_data()) return t;  // only a shape
  const bool is_made_here = !scope.was_given(t) && !t.requires_grad() && t.layout() == c10::kStrided &&
                            t.has_storage() &&  // a tensor that vmap batches has none
                            t.storage().use_count() == 1;
  return is_made_here ? replicate_copy(t, scope.mesh()) : t;
}

void run_code_of_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const OpInfo& info = op_info(op);
  const CompositeOpScope inside(op, torch::jit::last(*stack, info.args.size()));
  if (info.has_outs && run_functional_form(info, *stack)) return;
  const auto args = torch::jit::last(*stack, info.args.size());
  if (any_tensor(args, [&](const at::Tensor& t) { return needs_handler(info, t); })) {
    const WrittenResults written(info, *stack);
    const HandlerCall counted;
    info.handler(op, *stack);
    written.settle(*stack);
  } else {
    op.redispatchBoxed(keys_of_own_code(info, keys), stack);
  }
  if (schema.is_mutable()) return;
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    c10::IValue& result = (*stack)[i];
    if (result.isTensor()) result = distribute_result(inside, result.toTensor());
  }
}

void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const OpInfo& info = op_info(op);
  const auto args = torch::jit::last(*stack, info.args.size());
  if (!has_dtensor(info, args)) return run_on_plain(op, keys, stack);
  if (CompositeOpScope::current() != nullptr) return run_code_of_composite(op, keys, stack);
  const StyledCall styled(op, info.is_view, *stack);
  if (!styled.has_run()) {
    cast_to_param_dtype(op, info.is_view, *stack);
    if (!styled.applies() || !run_as_one(op, keys, stack)) run_code_of_composite(op, keys, stack);
  }
  styled.finish(*stack);
}

namespace {

bool has_tensor_argument(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    if (type.find("Tensor") != std::string::npos) return true;
  }
  return false;
}

// For ATen's composite operators.
std::optional<c10::KernelFunction> composite_kernel(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return std::nullopt;
  const bool is_taken = op.schema().name() == "aten::_has_compatible_shallow_copy_type";  // see set_data.cc
  if (!has_tensor_argument(op.schema()) || is_taken) return std::nullopt;
  if (auto kernel = typed_composite_kernel(op)) return kernel;
  return c10::KernelFunction::makeFromBoxedFunction<&run_composite>();
}

const bool composites_registered =
    (register_above_autograd(&composite_kernel, "dtensor: notes that a composite operator runs"), true);

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  static_assert(dtensor::internal::kAboveAutogradKey == c10::DispatchKey::DeferredInit,
                "register the fallthrough at kAboveAutogradKey");
  m.fallback(torch::CppFunction::makeFallthrough());
}
