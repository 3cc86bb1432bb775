#include "dtensor/dispatch/core_fallback.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/libtorch_version.h"
#include "dtensor/version.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The dispatcher has no public way to replace a fallback. Access checks do not apply to the arguments of an explicit
// instantiation, so these name its private members, which are the same in LibTorch 2.11 to 2.15.
template <auto kMember, typename Tag>
struct PrivateMember {
  friend constexpr auto member(Tag) { return kMember; }
};
struct DeregisterFallback {
  friend constexpr auto member(DeregisterFallback);
};
template struct PrivateMember<&c10::Dispatcher::deregisterFallback_, DeregisterFallback>;
struct BackendFallbacks {
  friend constexpr auto member(BackendFallbacks);
};
template struct PrivateMember<&c10::Dispatcher::backendFallbackKernels_, BackendFallbacks>;

// Not valid if LibTorch has none.
c10::KernelFunction& core_fallback() {
  static auto& kernel = *new c10::KernelFunction;  // leaked: operators may run while the process exits
  return kernel;
}

Fallback*& own_fallback() {
  static Fallback* fallback = nullptr;
  return fallback;
}

// REQUIRES: no argument is a distributed tensor.
bool has_libtorch_fake(c10::ArrayRef<c10::IValue> args) {
  return any_tensor(args, [](const at::Tensor& t) { return t.defined() && t.key_set().has(kDTensorKey); });
}

// Whether the call has the key because of LibTorch's own fake tensors or fake mode, not because of a scope of this
// library.
bool is_cores(const c10::OperatorHandle& op, const Stack& stack) {
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  if (has_dtensor(op_info(op), args)) return false;
  return has_libtorch_fake(args) ||
         (CompositeOpScope::current() == nullptr && !c10::impl::tls_is_dispatch_key_included(kAboveAutogradKey));
}

void run_at_key(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (core_fallback().isValid() && is_cores(op, *stack)) return core_fallback().callBoxed(op, keys, stack);
  own_fallback()(op, stack);
}

}  // namespace

const c10::KernelFunction& boxed_kernel() {
  static const auto& kernel = *new auto(c10::KernelFunction::makeFromBoxedFunction<&run_at_key>());
  return kernel;
}

void register_fallback(Fallback* fallback) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto kernels = dispatcher.getRegistrationsForDispatchKey(kDTensorKey);
  TORCH_CHECK(kernels.empty(), "LibTorch " TORCH_VERSION ", or a library that was loaded before, has kernels for ",
              kernels.size(), " operators at DispatchKey::", c10::toString(kDTensorKey), ", the first for ",
              c10::toString(kernels.front()), ". Distributed tensors need that key for themselves.");
  own_fallback() = fallback;
  if (dispatcher.hasBackendFallbackForDispatchKey(kDTensorKey)) {
    const int index = c10::getDispatchTableIndexForDispatchKey(kDTensorKey);
    core_fallback() = (dispatcher.*member(BackendFallbacks{}))[index].kernel;
    (dispatcher.*member(DeregisterFallback{}))(kDTensorKey);
  }
  new c10::RegistrationHandleRAII(dispatcher.registerFallback(  // stays for the process' lifetime
      kDTensorKey, boxed_kernel(), "dtensor"));
}

void register_typed_kernel(const char* name, const char* overload, c10::KernelFunction kernel) {
  new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerImpl(  // stays for the process' lifetime
      c10::OperatorName(name, overload), kDTensorKey, std::move(kernel), std::nullopt, nullptr,
      "dtensor: typed kernel"));
}

}  // namespace dtensor::internal

std::string dtensor::describe_dispatch_key() {
  return c10::str(c10::toString(internal::kDTensorKey), ": LibTorch " TORCH_VERSION,
                  internal::core_fallback().isValid() ? "'s own fallback runs calls without distributed tensors"
                                                      : " registers nothing there");
}
