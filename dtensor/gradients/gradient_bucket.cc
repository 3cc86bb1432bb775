#include "dtensor/gradients/gradient_bucket.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/scope.h"
#include "dtensor/gradient_bucket_limit.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/cast_parts.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/restore_contents.h"
#include "mesh/world.h"
#include "plan/largest_part.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

struct GradientBucketLimit {
  std::atomic<int64_t> bytes{kDefaultGradientBucketBytes};
};

// Deleter of the memory of an open gradient; it also stores the gradient's state before it was opened.
struct Opened {
  c10::intrusive_ptr<c10::BackendMeta> before;
  void operator()(LocalStorage* storage) const { delete storage; }
};

bool is_masked(const Placement& p) { return p.is_mask_partial(); }

// The state of `grad` before it was opened; null: it is not open.
const Opened* opened_of(const at::Tensor& grad) { return std::get_deleter<Opened>(meta_without_sync(grad).storage); }

// Restores the memory and layout of `grad` and writes `sum` there. Returns false, and does nothing, if `grad` is not
// open, or had another layout.
bool close_gradient(const at::Tensor& grad, const at::Tensor& sum) {
  const Opened* opened = opened_of(grad);
  if (opened == nullptr) return false;
  const auto before = opened->before;
  const auto& was = static_cast<const DTensorMeta&>(*before);
  const Spec &wanted = *was.spec, &given = *spec_of(sum);
  if (!(wanted.mesh() == given.mesh()) || wanted.placements() != given.placements() ||
      wanted.sizes() != given.sizes() || grad.sizes() != sum.sizes() || wanted.dtype() != given.dtype())
    return false;
  const RankTensors& parts = meta_for_read(sum).locals;
  {
    const LocalGuard guard;
    for (size_t r = 0; r < parts.size(); ++r) was.locals[r].copy_(parts[r]);
  }
  restore_contents(grad, before);
  note_write(grad, "gradient");
  return true;
}

// Restores the memory of `grad` with its sum from before it was opened. Returns false, and does nothing, if `grad` is
// not open.
bool forget_addends(const at::Tensor& grad) {
  const Opened* opened = opened_of(grad);
  if (opened == nullptr) return false;
  restore_contents(grad, c10::intrusive_ptr<c10::BackendMeta>(opened->before));
  return true;
}

// Of the largest part.
int64_t bytes_of(const at::Tensor& t) {
  const Spec& spec = *spec_of(t);
  return largest_part_bytes(spec.meta(), Layout(spec.mesh(), spec.placements()));
}

// The leaves of one backward with gradients in the bucket, and its deferred calls. Used by the threads of that
// backward.
class GradientBucket {
 public:
  std::shared_ptr<DeferredWork> late;  // null: no calls are deferred; guarded by Buckets::mutex

  // After a failed backward, gradients in the bucket are restored to their state before it.
  ~GradientBucket() { undo(); }

  bool holds(const at::Tensor& leaf) const {
    const auto is_of_leaf = [&](const Waiting& w) { return w.leaf.is_same(leaf); };
    if (std::any_of(waiting_.begin(), waiting_.end(), is_of_leaf)) return true;
    return std::any_of(groups_.begin(), groups_.end(),
                       [&](const OfGroup& g) { return std::any_of(g.waiting.begin(), g.waiting.end(), is_of_leaf); });
  }

  // Reduces the gradients in the bucket that are complete, if `leaf` does not fit.
  void make_room_for(const at::Tensor& leaf) {
    if (waiting_.empty()) return;
    const World& world = spec_of(leaf)->mesh().world();
    const bool one_world = spec_of(waiting_.front().leaf)->mesh().world() == world;
    if (!one_world || bytes_ + bytes_of(leaf) > gradient_bucket_bytes(world)) reduce();
  }

  void add(const at::Tensor& leaf, bool had_gradient) {
    waiting_.push_back({leaf, had_gradient});
    bytes_ += bytes_of(leaf);
  }

  // A reduced .grad is put aside, since it has another layout than the one that will be accumulated.
  void add_to_group(const std::shared_ptr<const LeafGroup>& group, const at::Tensor& leaf) {
    const at::Tensor before = leaf.grad();
    const bool is_reduced = is_dtensor(before) && spec_of(before)->placements() == spec_of(leaf)->placements();
    if (is_reduced) leaf.mutable_grad() = at::Tensor();
    of(group).waiting.push_back({leaf, before.defined(), is_reduced ? before : at::Tensor()});
  }

  // The gradient of `leaf` has been accumulated. Reduces the gradients of its group if it was the last one.
  void arrived(const std::shared_ptr<const LeafGroup>& group, const at::Tensor& leaf) {
    OfGroup& own = of(group);
    own.arrived.insert(leaf.unsafeGetTensorImpl());
    for (const at::Tensor& other : group->leaves()) {
      if (other.requires_grad() && own.arrived.count(other.unsafeGetTensorImpl()) == 0) return;
    }
    reduce(own.waiting);
  }

  void reduce() {
    reduce(waiting_);
    bytes_ = 0;
  }
  // Those of incomplete groups, too.
  void reduce_all() {
    for (OfGroup& g : groups_) reduce(g.waiting);
    reduce();
  }

  // Restores the gradients in the bucket to their state before this backward; one that was Partial already may keep
  // additions. Communicates nothing.
  void undo() {
    undo(waiting_);
    for (OfGroup& g : groups_) undo(g.waiting);
  }

  void part(const at::Tensor& leaf, const at::Tensor& gradient) {
    passed_.emplace_back(leaf, gradient.getIntrusivePtr());
  }
  void part_kept() {
    const c10::AutoGradMode no_grad(false);
    for (const auto& [leaf, gradient] : std::exchange(passed_, {})) {
      if (gradient.expired() || !leaf.grad().defined()) continue;
      leaf.mutable_grad() = leaf.grad().clone();
    }
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<std::pair<at::Tensor, WeakTensor>> passed_;
  struct Waiting {
    at::Tensor leaf;
    bool had_gradient;          // before this backward
    at::Tensor put_aside = {};  // that gradient, if the present one is to be added to it
  };

  struct OfGroup {
    std::shared_ptr<const LeafGroup> group;
    std::vector<Waiting> waiting;
    std::set<const c10::TensorImpl*> arrived;
  };

  OfGroup& of(const std::shared_ptr<const LeafGroup>& group) {
    const auto known = std::find_if(groups_.begin(), groups_.end(), [&](const OfGroup& g) { return g.group == group; });
    return known == groups_.end() ? groups_.emplace_back(OfGroup{group, {}, {}}) : *known;
  }
  static void reduce(std::vector<Waiting>& waiting) {
    std::vector<at::Tensor> leaves;
    for (const Waiting& w : waiting) leaves.push_back(w.leaf);
    if (!leaves.empty()) reduce_together(std::move(leaves), "gradient", /*implicit=*/true);
    const c10::AutoGradMode no_grad(false);
    for (Waiting& w : waiting) {
      if (!w.put_aside.defined() || !w.leaf.grad().defined()) continue;
      w.leaf.mutable_grad() = w.put_aside.add_(w.leaf.grad());
      w.put_aside = at::Tensor();
    }
    waiting.clear();
  }
  static void undo(std::vector<Waiting>& waiting) {
    for (const auto& [leaf, had_gradient, put_aside] : std::exchange(waiting, {})) {
      if (put_aside.defined()) leaf.mutable_grad() = put_aside;
      const at::Tensor& gradient = leaf.grad();
      if (!is_dtensor(leaf) || !is_dtensor(gradient) || forget_addends(gradient) || had_gradient) continue;
      if (spec_of(gradient)->placements() != spec_of(leaf)->placements()) leaf.mutable_grad() = at::Tensor();
    }
  }

  std::vector<Waiting> waiting_;  // without a group
  int64_t bytes_ = 0;             // of these
  std::vector<OfGroup> groups_;   // in the order of their first gradients, the same on all ranks
};

struct Buckets {
  std::mutex mutex;
  std::map<int, std::weak_ptr<GradientBucket>> by_backward;  // by its number; removed at its end, also if it fails
};
Buckets& buckets() {
  static auto* all = new Buckets;
  return *all;
}

GradientBucket& current_bucket() {
  Buckets& all = buckets();
  std::lock_guard lock(all.mutex);
  auto& known = all.by_backward;
  const auto present = known.find(torch::autograd::get_current_graph_task_id());
  if (present != known.end()) {
    if (const auto bucket = present->second.lock()) return *bucket;
  }
  for (auto it = known.begin(); it != known.end();) it = it->second.expired() ? known.erase(it) : ++it;
  const auto bucket = std::make_shared<GradientBucket>();
  known[torch::autograd::get_current_graph_task_id()] = bucket;
  torch::autograd::Engine::get_default_engine().queue_callback([bucket] {  // and keeps it alive
    try {
      if (bucket->late) bucket->late->compute_all();
      bucket->reduce_all();
    } catch (...) {
      bucket->undo();
      throw;
    }
    bucket->part_kept();
  });
  return *bucket;
}

}  // namespace

bool may_wait_in_bucket() {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  return chosen != nullptr && chosen->empty() && !c10::GradMode::is_enabled();
}

bool open_gradient(const at::Tensor& grad, const Placements& placements) {
  if (!is_dtensor(grad) || grad.requires_grad()) return false;
  const DTensorMeta& meta = meta_without_sync(grad);
  if (meta.spec->placements() == placements) return true;
  if (meta.storage->observer || std::any_of(placements.begin(), placements.end(), is_masked)) return false;
  const auto plan = cached_plan_within(meta.spec, placements, current_dispatch_scope().limits);
  if (!plan || !plan->is_local()) return false;
  const at::Tensor addends = redistribute_below_autograd(grad, placements, {});
  const DTensorMeta& opened = meta_without_sync(addends);
  const std::shared_ptr<LocalStorage> storage(
      new LocalStorage(meta.spec->mesh().world(), opened.spec->max_local_bytes()),
      Opened{grad.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr()});
  share_contents(grad, make_view(opened.spec, opened.locals, addends, 0, storage));
  return true;
}

bool put_in_bucket(const at::Tensor& leaf, const at::Tensor& gradient) {
  const Spec& from = *spec_of(gradient);
  const auto group = leaf_group_of(leaf);
  const bool fits = from.mesh() == spec_of(leaf)->mesh() && (group || bytes_of(gradient) <= bytes_of(leaf));
  if (!may_wait_in_bucket() || !fits) return false;
  GradientBucket& bucket = current_bucket();
  const bool is_first = !bucket.holds(leaf), has_gradient = leaf.grad().defined();
  if (is_first && !group) bucket.make_room_for(leaf);
  if (is_first && group) {
    bucket.add_to_group(group, leaf);
    return true;
  }
  if (has_gradient && !open_gradient(leaf.grad(), from.placements())) return false;
  if (is_first) bucket.add(leaf, has_gradient);
  return true;
}

void note_accumulated(const at::Tensor& leaf) {
  const auto group = leaf_group_of(leaf);
  if (group && may_wait_in_bucket()) current_bucket().arrived(group, leaf);
}

void part_in_the_end(const at::Tensor& leaf, const at::Tensor& gradient) { current_bucket().part(leaf, gradient); }

std::shared_ptr<DeferredWork> deferred_work(const std::function<std::shared_ptr<DeferredWork>()>& make) {
  GradientBucket& bucket = current_bucket();
  std::lock_guard lock(buckets().mutex);
  if (!bucket.late) bucket.late = make();
  return bucket.late;
}

void reduce_together(std::vector<at::Tensor> leaves, const std::string& op, bool implicit) {
  const c10::AutoGradMode no_grad(false);
  const auto is_ready = [](const at::Tensor& leaf) {  // or .grad was removed
    const at::Tensor& g = leaf.grad();
    return !is_dtensor(leaf) || !is_dtensor(g) || spec_of(g)->placements() == spec_of(leaf)->placements();
  };
  leaves.erase(std::remove_if(leaves.begin(), leaves.end(), is_ready), leaves.end());
  if (leaves.empty()) return;
  std::vector<at::Tensor> gradients;
  std::vector<Layout> to;
  for (const at::Tensor& leaf : leaves) {
    const auto group = leaf_group_of(leaf);
    const auto dtype = group ? group->reduce_dtype() : std::nullopt;
    const bool is_cast = dtype && c10::isFloatingType(spec_of(leaf.grad())->dtype());
    gradients.push_back(is_cast ? cast_parts(leaf.grad(), *dtype) : leaf.grad());
    to.emplace_back(spec_of(leaf)->mesh(), spec_of(leaf)->placements());
  }
  const auto& name = meta_without_sync(leaves.front()).name;
  std::string argument = name ? *name : "";
  if (name && leaves.size() > 1) absl::StrAppend(&argument, " and ", leaves.size() - 1, " more");
  const CommCause cause{op, argument, name ? common_module(leaves) : current_scope().module_path, implicit};
  const std::vector<at::Tensor> reduced = redistribute_as(gradients, to, cause);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor sum = cast_parts(reduced[i], spec_of(leaves[i].grad())->dtype());
    if (!close_gradient(leaves[i].grad(), sum)) leaves[i].mutable_grad() = sum;
  }
}

}  // namespace dtensor::internal

namespace dtensor {
using namespace internal;

void limit_gradient_bucket_bytes(const World& world, int64_t bytes) {
  TORCH_CHECK_VALUE(bytes >= 0, "[limit_gradient_bucket_bytes] ", bytes,
                    " bytes: give a limit per rank, or 0 to reduce every gradient by itself");
  world.attachment<GradientBucketLimit>().bytes = bytes;
}

int64_t gradient_bucket_bytes(const World& world) { return world.attachment<GradientBucketLimit>().bytes; }

}  // namespace dtensor
