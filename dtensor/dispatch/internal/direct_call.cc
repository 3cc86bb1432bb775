#include "dtensor/dispatch/internal/direct_call.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/call_key.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {
bool calls_are_decided_otherwise() {
  if (c10::ThreadLocalDebugInfo::current() == nullptr) return false;
  const DispatchScope& scope = current_dispatch_scope();
  return scope.step_decider != nullptr || scope.hints.limits.any();
}

namespace {

bool has_listeners() { return c10::ThreadLocalDebugInfo::current() != nullptr && !current_scope().listeners.empty(); }

}  // namespace

bool DirectCall::begin() {
  resolved_ = &info_.resolve();
  if (info_.handler != nullptr || !resolved_->rule || calls_are_decided_otherwise() || has_listeners()) return false;
  for (const at::Tensor* t : tensors_) {
    if (!is_dtensor(*t)) return false;
  }
  // Before parameters are registered, which may communicate: an observed rank calls the hook first, too.
  if (info_.args[0].written && CallHook::watching() != nullptr) return false;
  for (const at::Tensor* t : tensors_) note_parameter(info_, *t);
  const DeviceMesh& mesh = spec_of(*tensors_[0])->mesh();
  for (const at::Tensor* t : tensors_) {
    const DTensorMeta& meta = meta_without_sync(*t);
    if (is_special(meta) || meta.storage->module_traits || meta.spec->mesh() != mesh) return false;
  }
  CallContext context;
  if (info_.args[0].written) note_mutable_layout(context);
  note_context(info_, tensors_, context);
  if (resolved_->rule->uses_gradient_target && in_backward()) return false;
  begin_key(key_, info_, *resolved_, context);
  return true;
}

void DirectCall::note_mutable_layout(CallContext& context) const {
  if (!has_mutable_layout(*tensors_[0])) return;
  for (const at::Tensor* t : tensors_.slice(1)) {
    if (meta_without_sync(*t).storage == meta_without_sync(*tensors_[0]).storage) return;
  }
  context.mutable_layouts.push_back(0);
}

void DirectCall::add_value(size_t i, const c10::IValue& value) { append_argument(key_, *resolved_, i, value); }

void DirectCall::add(size_t i, c10::IntArrayRef ints) {
  if (resolved_->value_free[i]) return add_value(i, c10::IValue(ints));
  append_ints(key_, ints);
}

void DirectCall::add(size_t i, c10::SymIntArrayRef ints) {
  const auto known = c10::asIntArrayRefSlowOpt(ints);
  if (!known) return add_value(i, c10::IValue(ints));
  add(i, *known);
}

void DirectCall::add(size_t i, at::OptionalIntArrayRef ints) {
  if (!ints) return add_value(i, c10::IValue());
  add(i, *ints);
}

bool DirectCall::find_decision() {
  decision_ = strategy_cache(spec_of(*tensors_[0])->mesh().world()).find_direct(key_);
  return decision_ != nullptr;
}

at::Tensor DirectCall::make_result(RankTensors locals) const {
  const at::Tensor& input = *tensors_[0];
  if (!info_.is_view) return make_result_of(input, decision_->outputs[0], std::move(locals));
  set_base_of_views(input);
  return make_view(decision_->outputs[0], std::move(locals), input, input.storage_offset());
}

void DirectCall::note_write() const { mark_written(*meta_without_sync(*tensors_[0]).storage); }
void DirectCall::note_failed_write() const { note_write(); }

}  // namespace dtensor::internal
