#include "dtensor/dispatch/internal/direct_call.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/call_hints.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/compute_call.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/forward_mode.h"
#include "dtensor/tensor/replicate.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {

bool calls_are_decided_otherwise() {
  if (c10::ThreadLocalDebugInfo::current() == nullptr) return false;
  const DispatchScope& scope = current_dispatch_scope();
  return scope.step_decider != nullptr || scope.hints.limits.any();
}

[[gnu::hot]] bool DirectCall::add_hints_if_ordinary(bool scoped) {
  const DeviceMesh& mesh = spec_of(*tensors_[0])->mesh();
  uint64_t facts = 0;
  for (const at::Tensor* t : tensors_) {
    const DTensorMeta& meta = meta_without_sync(*t);
    if (!meta.locals.empty()) __builtin_prefetch(meta.locals[0].unsafeGetTensorImpl());  // read when computed
    if (needs_boxed_kernel(meta) || meta.storage->parameter->traits || meta.spec->mesh() != mesh) return false;
    facts |= facts_of(meta);
  }
  append_hints(key_.words, info_, tensors_, facts, info_.args[0].written, scoped);
  return true;
}

[[gnu::hot]] bool DirectCall::begin() {
  if (!key_.rule()) return false;
  const bool scoped = c10::ThreadLocalDebugInfo::current() != nullptr;
  if (scoped && (calls_are_decided_otherwise() || has_listeners())) return false;
  bool may_have_parameters = false;  // most calls have none: a loop less
  for (const at::Tensor* t : tensors_) {
    if (!is_dtensor(*t)) return false;
    may_have_parameters |= t->unsafeGetTensorImpl()->autograd_meta() != nullptr;
  }
  // Before parameters are registered, which may communicate: an observed rank calls the hook first, too.
  if (info_.args[0].written && CallHook::watching() != nullptr) return false;
  if (may_have_parameters) {
    for (const at::Tensor* t : tensors_) prepare_parameter(info_, *t);
  }
  if (key_.rule()->uses_gradient_target && in_backward()) return false;
  return add_hints_if_ordinary(scoped);
}

namespace {

// The keys of calls that go on to the operator's code, if autograd does not record it: not those of autocast, tracing
// and transformations of functions.
constexpr c10::DispatchKeySet kOrdinaryKeys = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                              c10::DispatchKeySet(kDTensorKey) |
                                              c10::DispatchKeySet(c10::DispatchKey::Dense) |
                                              c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask);

// Whether autograd records calls with `t`, backward or forward.
bool is_recorded(const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->autograd_meta() == nullptr) return false;
  return (c10::GradMode::is_enabled() && t.requires_grad()) || has_tangent(t);
}

}  // namespace

[[gnu::hot]] bool DirectCall::begin_composite(c10::DispatchKeySet keys) {
  if (tensors_.empty()) return false;
  if (((keys & kBelowThatKey).raw_repr() & ~kOrdinaryKeys.raw_repr()) != 0) return false;
  const bool scoped = c10::ThreadLocalDebugInfo::current() != nullptr;
  if (scoped && (calls_are_decided_otherwise() || has_listeners() || current_dispatch_scope().context_parallel))
    return false;
  for (const at::Tensor* t : tensors_) {
    // Parameters that are Partial are reduced when their values are used: by the operators in the composite's code.
    if (!is_dtensor(*t) || is_recorded(*t) || spec_of(*t)->has_partial()) return false;
  }
  if (in_backward()) return false;
  // If the call is not decided here, the operators in its code do the same.
  for (const at::Tensor* t : tensors_) prepare_parameter(info_, *t);
  if (!add_hints_if_ordinary(scoped)) return false;
  key_.words.push_back(c10::InferenceMode::is_enabled());  // else autograd tracks whether the result is a view
  return true;
}

void DirectCall::add_number(const at::Tensor& number) {
  has_number_ = true;
  key_.words.push_back(spec_of_number(number, spec_of(*tensors_[0])->mesh())->id());
}

void DirectCall::add(size_t, at::TensorList list) {
  key_.words.push_back(list.size());
  for (const at::Tensor& t : list) key_.words.push_back(spec_of(t)->id());
}

void DirectCall::add(size_t i, c10::SymIntArrayRef ints) {
  const auto known = c10::asIntArrayRefSlowOpt(ints);
  if (!known) return key_.add(i, c10::IValue(ints));
  add(i, *known);
}

void DirectCall::add(size_t i, at::OptionalIntArrayRef ints) {
  if (!ints) return key_.add(i, c10::IValue());
  add(i, *ints);
}

[[gnu::hot]] bool DirectCall::find_decision() {
  result_ = strategy_cache(spec_of(*tensors_[0])->mesh().world()).find_direct_result(key_.words);
  if (result_.spec == nullptr) return false;
  if (has_number_) count_otherwise();  // as the boxed kernel does
  return true;
}

int64_t DirectCall::num_elements_to_read() const {
  int64_t num = 0;
  if (info_.one_rank_at_a_time) return num;
  for (const at::Tensor* t : tensors_) num += num_cpu_elements(meta_without_sync(*t).locals[0]);
  return num;
}

void DirectCall::add_context(c10::Error& e, size_t r) const {
  std::string call = info_.name + "(";
  for (const at::Tensor* t : tensors_)
    absl::StrAppend(&call, t == tensors_[0] ? "" : ", ", spec_of(*t)->to_short_string());
  e.add_context(on_parts_of(call + ")", spec_of(*tensors_[0])->mesh(), r));
}

[[gnu::hot]] at::Tensor DirectCall::make_result(RankTensors&& locals) {
  const at::Tensor& input = *tensors_[0];
  if (!info_.is_view) {
    if (!result_.shares_memory) return make_result_of(input, std::move(result_.spec), std::move(locals));
    at::Tensor result = make_alias_of(input, std::move(result_.spec), std::move(locals));
    meta_without_sync(result).storage->shared.store(true, std::memory_order_relaxed);
    return result;
  }
  set_base_of_views(input);
  return make_view(std::move(result_.spec), std::move(locals), input, input.storage_offset());
}

void DirectCall::note_write() const { mark_written(*meta_without_sync(*tensors_[0]).storage); }

}  // namespace dtensor::internal
