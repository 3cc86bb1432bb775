#include "dtensor/dispatch/style_kernels.h"

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

#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/parallel/applied_style.h"
#include "dtensor/parallel/param_dtype.h"

namespace dtensor::internal {
namespace {

// Autocast's kernel calls the operator once more from the top, which is no other call of the program.
thread_local bool call_runs = false;

struct CallRuns {
  CallRuns() { call_runs = true; }
  ~CallRuns() { call_runs = false; }
  CallRuns(const CallRuns&) = delete;
  CallRuns& operator=(const CallRuns&) = delete;
};

void run_with_style(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  keys = keys & kBelowThatKey;
  if (call_runs || CompositeOpScope::current() != nullptr) return op.redispatchBoxed(keys, stack);
  const bool is_view = op_info(op).is_view;
  const StyledCall styled(op, is_view, *stack);
  if (!styled.has_run()) {
    cast_to_param_dtype(op, is_view, *stack);
    const CallRuns runs;
    op.redispatchBoxed(keys, stack);
  }
  styled.finish(*stack);
}

bool is_styled(const at::Tensor& t) { return has_style(t) || has_param_dtype(t); }
template <typename T>
bool is_styled(const T&) {
  return false;
}

// Without a stack where neither a style nor a param_dtype can apply: for frequent operators.
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

torch::Library* register_kernels() {
  auto* library = new torch::Library(torch::Library::IMPL, "aten", kAboveAutogradKey, __FILE__, __LINE__);
  library->impl("add.Tensor", &KernelWithStyle<at::_ops::add_Tensor>::call);
  library->impl("addmm", &KernelWithStyle<at::_ops::addmm>::call);
  library->impl("bmm", &KernelWithStyle<at::_ops::bmm>::call);
  library->impl("div.Tensor", &KernelWithStyle<at::_ops::div_Tensor>::call);
  library->impl("embedding", &KernelWithStyle<at::_ops::embedding>::call);
  library->impl("mm", &KernelWithStyle<at::_ops::mm>::call);
  library->impl("mul.Tensor", &KernelWithStyle<at::_ops::mul_Tensor>::call);
  library->impl("sub.Tensor", &KernelWithStyle<at::_ops::sub_Tensor>::call);
  for (const std::string name : kBoxedWithStyle) {
    const size_t dot = name.find('.');
    const c10::OperatorName op("aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
    const auto found = c10::Dispatcher::singleton().findSchema(op);
    if (!found || found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_with_style>());
  }
  return library;
}

}  // namespace

void register_style_kernels() {
  static const torch::Library* const registered = register_kernels();  // stays for the process' lifetime
  (void)registered;
}

}  // namespace dtensor::internal
