// Operators that are not composite, above autograd: those that the program calls follow the parallel styles of
// parameters (parallel/applied_style.h). composite_dispatch.cc does so for composite operators.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sub_ops.h>
#include <torch/library.h>

#include <array>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/parallel/applied_style.h"

namespace dtensor::internal {
namespace {

void run_with_style(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  keys = keys & kBelowThatKey;
  if (CompositeOpScope::current() != nullptr) return op.redispatchBoxed(keys, stack);
  const StyledCall styled(op, op_info(op).is_view, *stack);
  op.redispatchBoxed(keys, stack);
  styled.finish(*stack);
}

bool is_styled(const at::Tensor& t) { return has_style(t); }
template <typename T>
bool is_styled(const T&) {
  return false;
}

// Without a stack where no style can apply: for frequent operators.
template <typename Op, typename Schema = typename Op::schema>
struct KernelWithStyle;
template <typename Op, typename... Args>
struct KernelWithStyle<Op, at::Tensor(Args...)> {
  static at::Tensor call(c10::DispatchKeySet keys, Args... args) {
    if (!(is_styled(args) || ...) || CompositeOpScope::current() != nullptr || in_backward())
      return Op::redispatch(keys & kBelowThatKey, args...);
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    run_with_style(op, keys, &stack);
    return torch::jit::pop(stack).toTensor();
  }
};

// Operators that take a parameter and something else, and are rarely called by a program itself. A release of LibTorch
// may lack some.
constexpr std::array kBoxedWithStyle{
    "_embedding_bag", "convolution", "native_layer_norm", "native_group_norm", "native_batch_norm", "baddbmm",
    "addmv",          "mv",          "addcmul",           "where.self",        "_prelu_kernel",     "index_select",
    "index.Tensor",
};

bool register_boxed_with_style() {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto* registered = new std::vector<c10::RegistrationHandleRAII>;  // stays for the process' lifetime
  for (const std::string name : kBoxedWithStyle) {
    const size_t dot = name.find('.');
    const c10::OperatorName op("aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
    const auto found = dispatcher.findSchema(op);
    if (!found || found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    registered->push_back(dispatcher.registerImpl(op, kAboveAutogradKey,
                                                  c10::KernelFunction::makeFromBoxedFunction<&run_with_style>(),
                                                  std::nullopt, nullptr, "dtensor: follows parallel styles"));
  }
  return true;
}

const bool boxed_with_style_registered = register_boxed_with_style();

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  using namespace dtensor::internal;  // NOLINT: of this function
  m.impl("add.Tensor", &KernelWithStyle<at::_ops::add_Tensor>::call);
  m.impl("addmm", &KernelWithStyle<at::_ops::addmm>::call);
  m.impl("bmm", &KernelWithStyle<at::_ops::bmm>::call);
  m.impl("div.Tensor", &KernelWithStyle<at::_ops::div_Tensor>::call);
  m.impl("embedding", &KernelWithStyle<at::_ops::embedding>::call);
  m.impl("mm", &KernelWithStyle<at::_ops::mm>::call);
  m.impl("mul.Tensor", &KernelWithStyle<at::_ops::mul_Tensor>::call);
  m.impl("sub.Tensor", &KernelWithStyle<at::_ops::sub_Tensor>::call);
}
