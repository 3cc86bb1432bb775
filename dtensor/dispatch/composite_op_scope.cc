#include "dtensor/dispatch/composite_op_scope.h"

#include <algorithm>

#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

thread_local const CompositeOpScope* innermost = nullptr;

}  // namespace

bool CompositeOpScope::note_argument(const at::Tensor& t) {
  if (is_dtensor(t)) {
    if (!mesh_.defined()) mesh_ = spec_of(t)->mesh();
  } else if (t.defined()) {
    given_.push_back(t.unsafeGetTensorImpl());
    return !counts_as_number(t);
  }
  return false;
}

void CompositeOpScope::begin(bool given_plain) {
  // Inside other library code, plain arguments may have been made there.
  makes_plain_ = around_ != nullptr ? around_->makes_plain_ : !given_plain;
  if (around_ == nullptr) factories_reach_us_.emplace(kDTensorKey);
  innermost = this;
}

CompositeOpScope::CompositeOpScope(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args)
    : op_(op), around_(innermost) {
  bool given_plain = false;
  any_tensor(args, [&](const at::Tensor& t) {
    given_plain |= note_argument(t);
    return false;
  });
  begin(given_plain);
}

CompositeOpScope::CompositeOpScope(const c10::OperatorHandle& op, c10::ArrayRef<const at::Tensor*> tensors)
    : op_(op), around_(innermost) {
  bool given_plain = false;
  for (const at::Tensor* t : tensors) given_plain |= note_argument(*t);
  begin(given_plain);
}

CompositeOpScope::~CompositeOpScope() { innermost = around_; }

const CompositeOpScope* CompositeOpScope::current() { return innermost; }

bool CompositeOpScope::was_given(const at::Tensor& t) const {
  const CompositeOpScope* outermost = this;
  while (outermost->around_ != nullptr) outermost = outermost->around_;
  const auto& given = outermost->given_;
  return std::find(given.begin(), given.end(), t.unsafeGetTensorImpl()) != given.end();
}

std::string CompositeOpScope::called_operator() const {
  const CompositeOpScope* outermost = this;
  while (outermost->around_ != nullptr) outermost = outermost->around_;
  return c10::toString(outermost->op_.operator_name());
}

namespace {

// One number expanded, as autograd makes zero gradients and tangents.
bool is_expanded_number(const at::Tensor& t) {
  if (t.layout() != c10::kStrided || t.numel() < 2 || !t.has_storage()) return false;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1 && t.stride(d) != 0) return false;
  }
  return static_cast<int64_t>(t.storage().nbytes()) == t.element_size();
}

}  // namespace

void run_without_handler(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  c10::DispatchKeySet keys;
  for (const c10::IValue& arg : torch::jit::last(stack, op.schema().arguments().size())) {
    if (arg.isTensor() && arg.toTensor().defined()) keys = keys | arg.toTensor().key_set();
  }
  keys = c10::impl::computeDispatchKeySet(keys, c10::DispatchKeySet(c10::DispatchKeySet::FULL));
  // The kernels of these keys are fallthroughs, which only the dispatcher knows. Tensors have the first in inference
  // mode, too; the second is there inside autograd.grad() with is_grads_batched.
  keys = (keys & kBelowThatKey) - c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::VmapMode});
  // Below autograd the next kernel would be the handler itself.
  if (keys.highestPriorityTypeId() == kDTensorKey) return run_composite_code(op, stack);
  count_as_given();
  op.redispatchBoxed(keys, &stack);
}

bool counts_as_number(const at::Tensor& t) {
  if (t.is_nested()) return false;
  return t.dim() == 0 || (t.dim() == 1 && t.numel() == 0) || (t.numel() == 1 && t.device().is_cpu()) ||
         t._is_zerotensor() || is_expanded_number(t);
}

}  // namespace dtensor::internal
