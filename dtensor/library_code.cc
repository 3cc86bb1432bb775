#include "dtensor/library_code.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "dtensor/above_autograd_key.h"
#include "dtensor/dispatch.h"
#include "dtensor/gradient_layout.h"
#include "dtensor/op_info.h"
#include "dtensor/out_tensor.h"
#include "dtensor/plain_dispatch.h"
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

// A composite may give a tensor that it made and filled itself, without any operator on what is distributed: where there are
// no elements to work on, say. Its results are distributed all the same.
void distribute_results(const LibraryCode& code, size_t num_results, Stack& stack) {
  const auto made_here = [&](const at::Tensor& t) {
    if (t.defined() && t.is_meta() && code.mesh().world().has_data()) return false;  // no value, but a shape
    return t.defined() && !is_dtensor(t) && !code.was_given(t) && !t.requires_grad() && t.layout() == c10::kStrided && t.unsafeGetTensorImpl()->storage().use_count() == 1;
  };
  for (size_t i = stack.size() - num_results; i < stack.size(); ++i) {
    if (stack[i].isTensor() && made_here(stack[i].toTensor())) stack[i] = replicate_copy(stack[i].toTensor(), code.mesh());
  }
}

void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const OpInfo& info = op_info(op);
  const auto args = torch::jit::last(*stack, info.args.size());
  const LibraryCode inside(op, args);
  if (has_dtensor(info, args)) {
    if (info.handler != nullptr) return info.handler(op, *stack);
    if (info.has_outs && run_functional_form(info, *stack)) return;
  }
  op.redispatchBoxed(keys & kBelowThatKey, stack);
  if (inside.is_outermost() && inside.makes_plain() && !schema.is_mutable()) distribute_results(inside, schema.returns().size(), *stack);
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
    if (!has_tensor_argument(op->schema()) || name.name == "aten::_has_compatible_shallow_copy_type") continue;  // see set_data.cc
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
      given_.push_back(t.unsafeGetTensorImpl());
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

bool LibraryCode::was_given(const at::Tensor& t) const {
  const LibraryCode* outermost = this;
  while (outermost->around_ != nullptr) outermost = outermost->around_;
  const auto& given = outermost->given_;
  return std::find(given.begin(), given.end(), t.unsafeGetTensorImpl()) != given.end();
}

std::string LibraryCode::called_operator() const {
  const LibraryCode* outermost = this;
  while (outermost->around_ != nullptr) outermost = outermost->around_;
  return c10::toString(outermost->op_.operator_name());
}

namespace {

// One number seen many times, as autograd makes gradients and tangents that are zero.
bool is_expanded_number(const at::Tensor& t) {
  if (t.layout() != c10::kStrided || t.numel() < 2 || !t.has_storage()) return false;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1 && t.stride(d) != 0) return false;
  }
  return static_cast<int64_t>(t.storage().nbytes()) == t.element_size();
}

}  // namespace

bool counts_as_number(const at::Tensor& t) {
  return t.dim() == 0 || (t.numel() == 1 && t.device().is_cpu()) || is_expanded_number(t);
}

bool plain_is_replicated() {
  if (current_scope().implicit_replication || in_backward()) return true;
  return innermost != nullptr && innermost->makes_plain();
}

}  // namespace dtensor

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  static_assert(dtensor::kAboveAutogradKey == c10::DispatchKey::DeferredInit, "register the fallthrough at kAboveAutogradKey");
  m.fallback(torch::CppFunction::makeFallthrough());
}
