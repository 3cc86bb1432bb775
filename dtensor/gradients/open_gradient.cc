#include "dtensor/gradients/open_gradient.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/restore_contents.h"
#include "dtensor/views/copied_view.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// Deleter of the memory of an open gradient; it also stores the gradient's state before it was opened.
struct Opened {
  c10::intrusive_ptr<c10::BackendMeta> before;
  at::Tensor sum = {};  // whose contents it has; undefined: it has addends
  void operator()(LocalStorage* storage) const { delete storage; }
};

bool is_masked(const Placement& p) { return p.is_mask_partial(); }

// The state of `grad` before it was opened; null: it is not open.
const Opened* opened_of(const at::Tensor& grad) { return std::get_deleter<Opened>(meta_without_sync(grad).storage); }

}  // namespace

bool open_gradient(const at::Tensor& grad, const Placements& placements) {
  if (!is_dtensor(grad) || grad.requires_grad()) return false;
  const DTensorMeta& meta = meta_without_sync(grad);
  if (meta.spec->placements() == placements) return true;
  if (is_moved_view(grad) || std::any_of(placements.begin(), placements.end(), is_masked)) return false;
  const auto plan = cached_plan_within(meta.spec, placements, current_dispatch_scope().hints.limits);
  if (!plan || !plan->is_local()) return false;
  const at::Tensor addends = redistribute_below_autograd(grad, placements, {});
  const DTensorMeta& opened = meta_without_sync(addends);
  const std::shared_ptr<LocalStorage> storage(
      new LocalStorage(meta.spec->mesh().world(), opened.spec->max_local_bytes()),
      Opened{grad.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr()});
  share_contents(grad, make_view(opened.spec, opened.locals, addends, 0, storage));
  return true;
}

bool put_sum_in_open(const at::Tensor& grad, const at::Tensor& sum) {
  const Opened* opened = opened_of(grad);
  if (opened == nullptr) return false;
  const DTensorMeta& given = meta_without_sync(sum);
  const Spec& wanted = *static_cast<const DTensorMeta&>(*opened->before).spec;
  if (!(wanted.mesh() == given.spec->mesh()) || wanted.placements() != given.spec->placements() ||
      wanted.sizes() != given.spec->sizes() || wanted.dtype() != given.spec->dtype() || grad.sizes() != sum.sizes())
    return false;
  // The bytes count as those of `sum`.
  const std::shared_ptr<LocalStorage> storage(new LocalStorage(wanted.mesh().world(), 0), Opened{opened->before, sum});
  const at::Tensor shown = make_view(given.spec, given.locals, sum, 0, storage, given.arriving);
  restore_contents(grad, shown.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
  return true;
}

void close_gradient(const at::Tensor& grad) {
  const Opened* opened = opened_of(grad);
  if (opened == nullptr || !opened->sum.defined()) return;
  const auto before = opened->before;
  const auto& was = static_cast<const DTensorMeta&>(*before);
  const RankTensors& parts = meta_for_read(grad).locals;
  {
    const LocalGuard guard;
    for (size_t r = 0; r < parts.size(); ++r) was.locals[r].copy_(parts[r]);
  }
  restore_contents(grad, before);
  note_write(grad, "gradient");
}

bool forget_addends(const at::Tensor& grad) {
  const Opened* opened = opened_of(grad);
  if (opened == nullptr) return false;
  restore_contents(grad, c10::intrusive_ptr<c10::BackendMeta>(opened->before));
  return true;
}

}  // namespace dtensor::internal
