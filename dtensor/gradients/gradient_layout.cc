#include "dtensor/gradients/gradient_layout.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <vector>

#include "comm/scope.h"
#include "dtensor/gradients/gradient_bucket.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/gradients/open_gradient.h"
#include "dtensor/gradients/reduce_together.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/offload_parts.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/copied_view.h"

namespace dtensor::internal {
namespace {

// Whether it is a GradientLayoutHook.
bool is_ours(const std::unique_ptr<torch::autograd::FunctionPreHook>& hook);

CommCause cause_of(const std::string& op, const DTensorMeta& leaf, const char* unnamed = "") {
  return {op, leaf.name ? *leaf.name : unnamed, leaf.name ? module_of(leaf) : current_scope().module_path,
          /*implicit=*/true};
}

// Autograd copies a gradient that has other references, such as a hook that keeps it. Copying a deferred gradient would
// compute it at once, only on the ranks that have such a hook; so autograd gets a handle of its own.
bool is_late(const at::Tensor& gradient) {
  const DTensorMeta& meta = meta_without_sync(gradient);
  return meta.arriving && !meta.arriving->done();
}

bool has_hooks_of_user(const at::Tensor& leaf) {
  const auto& hooks = torch::autograd::impl::hooks(leaf);
  const auto others = std::count_if(hooks.begin(), hooks.end(), [](const auto& hook) { return !is_ours(hook); });
  const auto& list = torch::autograd::impl::get_autograd_meta(leaf)->cpp_hooks_list_;  // one hook calls all C++ hooks
  return list == nullptr ? others > 0 : others > 1 || !list->empty();
}

// The deferred gradient passed to hooks. A hook may write to it in place, as in `g.clamp_(-1, 1)`, which reduces it: no
// other handle depends on the layout of this one.
at::Tensor for_hooks(const at::Tensor& leaf, const at::Tensor& gradient) {
  const DTensorMeta& meta = meta_without_sync(gradient);
  if (!meta.spec->has_partial() || !meta.storage->shared || !has_hooks_of_user(leaf)) return gradient;
  return make_alias_of(gradient, SpecPtr(meta.spec), RankTensors(meta_for_read(gradient).locals));
}

// The leaf that a hook belongs to, or whose node it belongs to. (With a weak pointer a hook would keep Python from
// swapping the leaf with another tensor: torch.utils.swap_tensors.)
at::Tensor handle_of(c10::TensorImpl* leaf) {
  using Impl = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return at::Tensor::wrap_tensor_impl(Impl::unsafe_reclaim_from_nonowning(leaf));
}

// The gradient in host memory if the leaf is there, and with it a .grad that it is added to. Error:
// NotImplementedError, for gradients of gradients.
at::Tensor moved_to_leaf(const at::Tensor& leaf, const at::Tensor& gradient) {
  if (!is_offloaded(leaf)) return gradient;
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled(),
                              "a gradient with create_graph of a parameter that fully_shard() keeps in host memory "
                              "(offload) would have no history: shard that module without offload");
  offload_gradient(leaf);
  return offload_parts(gradient);
}

class GradientLayoutHook final : public torch::autograd::FunctionPreHook {
 public:
  // `before_hooks`: as the first of the leaf's hooks; otherwise after the user's hooks, where the gradient is
  // accumulated.
  GradientLayoutHook(const at::Tensor& leaf, bool before_hooks)
      : leaf_(leaf.unsafeGetTensorImpl()), before_hooks_(before_hooks) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (grads.empty() || !grads[0].defined()) return grads;
    const at::Tensor leaf = handle_of(leaf_);
    if (!is_dtensor(leaf)) return grads;
    drop_after_backward(spec_of(leaf)->mesh());
    auto result = grads;
    result[0] = arrived(leaf, grads[0]);
    return result;
  }

 private:
  at::Tensor arrived(const at::Tensor& leaf, const at::Tensor& given) const {
    if (given.key_set().has(c10::DispatchKey::Batched)) return given;  // of all rows of is_grads_batched
    const DTensorMeta& meta = meta_without_sync(leaf);
    // If a hook keeps a gradient, autograd copies it on the rank of that hook alone. That would fetch a moved view
    // there; and the copy would cache layouts, while on other ranks .grad is the given memory, which caches nothing.
    if (is_dtensor(given) && (is_moved_view(given) || meta_without_sync(given).storage->user_may_write)) {
      return arrived(leaf, given.clone());
    }
    if (current_dispatch_scope().delay_gradient_reduction) {
      const bool is_alike = is_dtensor(given) && spec_of(given)->mesh() == meta.spec->mesh();
      if (is_dtensor(leaf.grad()) && is_offloaded(leaf.grad())) leaf.mutable_grad() = load_parts(leaf.grad());
      if (is_alike && may_wait_in_bucket()) open_gradient(leaf.grad(), spec_of(given)->placements());
      return given;
    }
    const at::Tensor gradient = distributed_gradient(given, meta.spec->mesh());
    const Layout leaf_layout(meta.spec->mesh(), meta.spec->placements());
    const Spec& spec = *spec_of(gradient);
    const bool is_there = spec.mesh() == leaf_layout.mesh() && spec.placements() == leaf_layout.placements();
    if (is_there && is_late(gradient) && may_wait_in_bucket()) {
      part_in_the_end(leaf, gradient);
      return gradient.variable_data();
    }
    if (is_there) return moved_to_leaf(leaf, gradient);
    if (put_in_bucket(leaf, gradient)) return before_hooks_ ? for_hooks(leaf, gradient) : gradient;
    return moved_to_leaf(leaf, reduce_at_once(leaf, gradient, cause_of("gradient", meta)));
  }

  c10::TensorImpl* leaf_;
  const bool before_hooks_;
};

// Asked per call with a parameter: faster than dynamic_cast.
bool is_ours(const std::unique_ptr<torch::autograd::FunctionPreHook>& hook) {
  if (hook == nullptr) return false;
  const torch::autograd::FunctionPreHook& h = *hook;
  return typeid(h) == typeid(GradientLayoutHook);
}

// Called when autograd has accumulated the gradient of a leaf.
class AccumulatedHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit AccumulatedHook(const at::Tensor& leaf) : leaf_(leaf.unsafeGetTensorImpl()) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    const at::Tensor leaf = handle_of(leaf_);
    if (!is_dtensor(leaf)) return outputs;
    // Where a hook has kept the gradient, .grad is a copy, and elsewhere it shares its memory: writes to either keep
    // its layout.
    if (is_dtensor(leaf.grad())) meta_without_sync(leaf.grad()).storage->shared = true;
    if (!current_dispatch_scope().delay_gradient_reduction) note_accumulated(leaf);
    return outputs;
  }

 private:
  c10::TensorImpl* leaf_;
};

}  // namespace

bool is_leaf_parameter(const at::Tensor& t) {
  const auto* autograd = t.unsafeGetTensorImpl()->autograd_meta();
  if (autograd == nullptr) return false;
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(autograd);
  return meta->requires_grad_ && meta->grad_fn_ == nullptr && !meta->is_view_;
}

void keep_gradient_layout(const at::Tensor& leaf) {
  if (!is_leaf_parameter(leaf)) return;
  const auto sink = torch::autograd::impl::try_get_grad_accumulator(leaf);
  // An optimizer's call: no graph has the leaf, and this call makes none. Whether the user's hooks discarded ours is
  // asked by the next call that does.
  const bool was_kept = meta_without_sync(leaf).storage->is_parameter.load(std::memory_order_relaxed);
  if (was_kept && !sink && !c10::GradMode::is_enabled()) return;
  static std::mutex mutex;  // several threads may use a parameter for the first time at once
  std::lock_guard lock(mutex);
  using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;
  // Before the user's hooks: gradients that are not deferred are redistributed to the leaf's layout. (add_hook is for a
  // tensor that has none.)
  Hooks& hooks = torch::autograd::impl::hooks(leaf);
  // Makes the list now: the first hook of the user would make it, and discard existing hooks.
  if (hooks.empty()) torch::autograd::impl::create_cpp_hook(leaf);
  if (std::none_of(hooks.begin(), hooks.end(), is_ours)) {
    hooks.insert(hooks.begin(), std::make_unique<GradientLayoutHook>(leaf, /*before_hooks=*/true));
  }
  // Again after them: they may change the gradient, and the first hook registered in Python discards those of the
  // tensor.
  if (sink && std::none_of(sink->pre_hooks().begin(), sink->pre_hooks().end(), is_ours)) {
    sink->add_pre_hook(std::make_unique<GradientLayoutHook>(leaf, /*before_hooks=*/false));
  }
  const auto follows = [](const auto& hook) {
    const torch::autograd::FunctionPostHook& h = *hook;
    return typeid(h) == typeid(AccumulatedHook);
  };
  if (sink && std::none_of(sink->post_hooks().begin(), sink->post_hooks().end(), follows)) {
    sink->add_post_hook(std::make_unique<AccumulatedHook>(leaf));
  }
}

void reduce_partial_parameter(const at::Tensor& leaf, const std::string& op) {
  const DTensorMeta& meta = meta_without_sync(leaf);
  if (!meta.laid_out_by_engine || !meta.spec->has_partial()) return;
  const CommCause cause = cause_of(op, meta, "parameter");
  share_contents(leaf, redistribute_below_autograd(leaf, without_partials(meta.spec->placements()), cause));
}

at::Tensor gradient_leaf() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return {};
  for (const auto& edge : node->next_edges()) {
    if (auto* sink = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get())) {
      if (is_dtensor(sink->variable)) return sink->variable;
    }
  }
  return {};
}

}  // namespace dtensor::internal
