#include "dtensor/dispatch/internal/call_hints.h"

#include <c10/core/GradMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

#include "comm/scope.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor::internal {
namespace {

// Whether the gradient of a parameter returns to a layout that not all ranks have alike.
bool has_gradient_to_return(const Spec& parameter) { return !parameter.is_replicated() && c10::GradMode::is_enabled(); }

// Whether these facts of a tensor may be in the context of a call with it.
bool give_hints(uint64_t facts, const Spec& spec) {
  return (facts & kIsParameter) != 0 ? has_gradient_to_return(spec) : facts != 0;
}

bool give_no_hints(c10::ArrayRef<const at::Tensor*> tensors) {
  return std::none_of(tensors.begin(), tensors.end(), [](const at::Tensor* t) {
    const DTensorMeta& meta = meta_without_sync(*t);
    return give_hints(facts_of(meta), *meta.spec);
  });
}

void add_facts(c10::ArrayRef<const at::Tensor*> inputs, CallContext& context) {
  // Constants count if they are used together with parameters only: the initial state of a recurrence, or noise. With
  // other inputs one might be a weight.
  bool constants_alone = true;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k]->defined()) continue;
    const DTensorMeta& meta = meta_without_sync(*inputs[k]);
    const uint64_t facts = facts_of(meta);
    if ((facts & kIsParameter) != 0) {
      if (has_gradient_to_return(*meta.spec)) context.parameters.push_back(static_cast<int>(k));
    } else if ((facts & kIsFactoryResult) != 0) {
      context.factory_inputs.push_back(static_cast<int>(k));
    } else {
      constants_alone = false;
    }
  }
  if (!constants_alone) context.factory_inputs.clear();
}

// Gradients are usually read more than once. But if backward multiplies its first gradient elementwise by a saved
// tensor, the product is the gradient of a factor, and is summed if that was the smaller one.
bool reuses_partial_inputs(const OpInfo& info, const at::Tensor& first) {
  if (info.pointwise && first.defined() && !spec_of(first)->has_partial()) return false;
  return in_backward();
}

// The context of a call that may change the layout of its first tensor, and nothing else.
CallContext with_mutable_first() {
  CallContext context;
  context.mutable_layouts.push_back(0);
  return context;
}

CacheKey key_of(const CallContext& context) {
  CacheKey key;
  context.append_to_key(key);
  return key;
}

// What append_hints() seldom does, kept out of its code.
[[gnu::noinline]] void append_mutable_first(CacheKey& key) {
  static const CacheKey first_changes = key_of(with_mutable_first());
  key.append(first_changes.begin(), first_changes.end());
}
[[gnu::noinline]] void append_found_hints(CacheKey& key, const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors,
                                          bool first_has_mutable_layout) {
  CallContext context = first_has_mutable_layout ? with_mutable_first() : CallContext();
  find_hints(info, tensors, context);
  context.append_to_key(key);
}

}  // namespace

bool has_mutable_layout(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  const LocalStorage& storage = *meta.storage;
  return meta.laid_out_by_engine && !storage.shared && !storage.user_may_write && !storage.observer &&
         !is_leaf_parameter(t);
}

void find_hints(const OpInfo& info, c10::ArrayRef<const at::Tensor*> inputs, CallContext& context) {
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k]->defined() || !meta_without_sync(*inputs[k]).hints.any()) continue;
    context.inputs.resize(inputs.size());
    context.inputs[k] = meta_without_sync(*inputs[k]).hints;
  }
  add_facts(inputs, context);
  context.partial_inputs_reused = reuses_partial_inputs(info, *inputs.front());
  if (c10::ThreadLocalDebugInfo::current() == nullptr) return;  // no scope: cheaper than asking for its hints
  context.scope = current_dispatch_scope().hints;
}

[[gnu::hot]] void append_hints(CacheKey& key, const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors,
                               uint64_t all_facts, bool writes, bool scoped) {
  const bool changes_layout = writes && has_mutable_layout(*tensors.front());
  // Cheaper than find_hints(), which would find nothing.
  if (!scoped && (all_facts == 0 || give_no_hints(tensors)) && !reuses_partial_inputs(info, *tensors.front())) {
    if (changes_layout) return append_mutable_first(key);
    return CallContext::append_none_to_key(key);
  }
  append_found_hints(key, info, tensors, changes_layout);
}

}  // namespace dtensor::internal
