#include "dtensor/library_code.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <vector>

#include "dtensor/above_autograd_key.h"
#include "dtensor/gradient_layout.h"
#include "dtensor/representation.h"
#include "mesh/scope.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

thread_local const LibraryCode* innermost = nullptr;

template <typename F>
void for_each_tensor(c10::ArrayRef<c10::IValue> args, const F& f) {
  for (const auto& arg : args) {
    if (arg.isTensor()) {
      f(arg.toTensor());
    } else if (arg.isList()) {
      for (const auto& element : arg.toListRef()) {
        if (element.isNone()) continue;
        if (!element.isTensor()) break;
        f(element.toTensor());
      }
    }
  }
}

void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const LibraryCode inside(op, torch::jit::last(*stack, op.schema().arguments().size()));
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kAboveAutogradKey), stack);
}

bool has_tensor_argument(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    if (type.find("Tensor") != std::string::npos) return true;
  }
  return false;
}

// For all of ATen's composite operators, when the library is loaded.
bool register_composites() {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto* registered = new std::vector<c10::RegistrationHandleRAII>;  // for the life of the process
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    if (!has_tensor_argument(op->schema())) continue;
    registered->push_back(dispatcher.registerImpl(name, kAboveAutogradKey, c10::KernelFunction::makeFromBoxedFunction<&run_composite>(),
                                                  std::nullopt, nullptr, "dtensor: notes that a composite operator runs"));
  }
  return true;
}

const bool composites_registered = register_composites();

}  // namespace

LibraryCode::LibraryCode(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) : op_(op), around_(innermost) {
  bool given_plain = false;
  for_each_tensor(args, [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (!is_dtensor(t)) {
      given_plain = given_plain || !counts_as_number(t);
    } else if (!mesh_.defined()) {
      mesh_ = layout_of(t).spec->mesh();
    }
  });
  // Inside of other library code what is given may have been made there.
  makes_plain_ = around_ != nullptr ? around_->makes_plain_ : !given_plain;
  if (around_ == nullptr) factories_reach_us_.emplace(kDTensorKey);
  innermost = this;
}

LibraryCode::~LibraryCode() { innermost = around_; }

const LibraryCode* LibraryCode::current() { return innermost; }

std::string LibraryCode::called_operator() const {
  const LibraryCode* outermost = this;
  while (outermost->around_ != nullptr) outermost = outermost->around_;
  return c10::toString(outermost->op_.operator_name());
}

bool counts_as_number(const at::Tensor& t) { return t.dim() == 0 || (t.numel() == 1 && t.device().is_cpu()); }

bool plain_is_replicated() {
  if (current_scope().implicit_replication || in_backward()) return true;
  return innermost != nullptr && innermost->makes_plain();
}

}  // namespace dtensor

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  static_assert(dtensor::kAboveAutogradKey == c10::DispatchKey::DeferredInit, "register the fallthrough at kAboveAutogradKey");
  m.fallback(torch::CppFunction::makeFallthrough());
}
