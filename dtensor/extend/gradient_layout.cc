#include "dtensor/extend/gradient_layout.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/scope.h"
#include "dtensor/extend/dispatch_scope.h"
#include "dtensor/extend/gradient_bucket.h"
#include "dtensor/extend/gradient_hook.h"
#include "dtensor/extend/redistribute_autograd.h"
#include "dtensor/extend/reduced_forms.h"
#include "dtensor/extend/representation.h"

namespace dtensor {
namespace {

class GradientLayoutHook final : public GradientHook {
 public:
  explicit GradientLayoutHook(const at::Tensor& leaf) : leaf_(leaf.getIntrusivePtr()) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    const auto impl = leaf_.lock();
    if (!impl || grads.empty() || !grads[0].defined()) return grads;
    const at::Tensor leaf = at::Tensor::wrap_tensor_impl(impl);
    if (!is_dtensor(leaf)) return grads;
    const DTensorMeta& meta = peek_meta(leaf);
    forget_after_backward(meta.spec->mesh());
    if (current_dispatch_scope().delay_gradient_reduction) return grads;
    auto result = grads;
    result[0] = distributed_gradient(grads[0], meta.spec->mesh());
    if (spec_of(result[0])->placements() == meta.spec->placements() || put_in_bucket(leaf, result[0])) return result;
    CommCause cause;
    cause.op = "gradient";
    cause.argument = meta.name ? *meta.name : "";
    cause.module_path = meta.name ? module_of(meta) : current_scope().module_path;
    result[0] = redistribute_as(result[0], meta.spec->placements(), cause);
    return result;
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> leaf_;
};

}  // namespace

bool is_leaf_parameter(const at::Tensor& t) {
  const auto* autograd = t.unsafeGetTensorImpl()->autograd_meta();
  if (autograd == nullptr) return false;
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(autograd);
  return meta->requires_grad_ && meta->grad_fn_ == nullptr && !meta->is_view_;
}

void keep_gradient_layout(const at::Tensor& leaf) {
  static std::mutex mutex;  // several threads may meet a parameter for the first time at once
  std::lock_guard lock(mutex);
  using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;
  const auto is_ours = [](const auto& hook) { return GradientHook::is_one(*hook); };
  // Before the user's hooks, so that they see the leaf's layout. (add_hook is for a tensor that has none.)
  Hooks& hooks = torch::autograd::impl::hooks(leaf);
  if (std::none_of(hooks.begin(), hooks.end(), is_ours)) {
    hooks.insert(hooks.begin(), std::make_unique<GradientLayoutHook>(leaf));
  }
  // Once more behind them: the first hook that a user registers, even after forward, throws away those of the tensor.
  const auto sink = torch::autograd::impl::try_get_grad_accumulator(leaf);
  if (sink && std::none_of(sink->pre_hooks().begin(), sink->pre_hooks().end(), is_ours)) {
    sink->add_pre_hook(std::make_unique<GradientLayoutHook>(leaf));
  }
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

}  // namespace dtensor
