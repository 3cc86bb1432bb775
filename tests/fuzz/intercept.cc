#include "tests/fuzz/intercept.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <utility>

namespace dtensor::fuzz {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local const BeforeCall* before_now = nullptr;

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  AfterCall after;
  {
    c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    after = (*before_now)(op, torch::jit::last(*stack, op.schema().arguments().size()).vec());
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  if (!after) return;
  c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  after(torch::jit::last(*stack, op.schema().returns().size()).vec());
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

}  // namespace

Interception::Interception(BeforeCall before) : before_(std::move(before)), outer_(before_now), guard_(kKey) {
  before_now = &before_;
}

Interception::~Interception() { before_now = outer_; }

}  // namespace dtensor::fuzz
