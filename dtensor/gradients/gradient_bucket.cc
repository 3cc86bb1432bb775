#include "dtensor/gradients/gradient_bucket.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "dtensor/gradients/bucket_settings.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/gradients/open_gradient.h"
#include "dtensor/gradients/waiting_gradient.h"
#include "dtensor/tensor/offload_parts.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// The leaves of one backward with gradients in the bucket, and its deferred calls. Used by the threads of that
// backward.
class GradientBucket {
 public:
  std::shared_ptr<DeferredWork> late;  // null: no calls are deferred; guarded by Buckets::mutex

  // After a failed backward, gradients in the bucket are restored to their state before it.
  ~GradientBucket() { undo_all(); }

  bool holds(const at::Tensor& leaf) const {
    const auto is_of_leaf = [&](const WaitingGradient& w) { return w.leaf.is_same(leaf); };
    if (std::any_of(waiting_.begin(), waiting_.end(), is_of_leaf)) return true;
    return std::any_of(groups_.begin(), groups_.end(),
                       [&](const OfGroup& g) { return std::any_of(g.waiting.begin(), g.waiting.end(), is_of_leaf); });
  }

  // Reduces the gradients in the bucket that are complete, if `leaf` does not fit.
  void make_room_for(const at::Tensor& leaf) {
    if (waiting_.empty()) return;
    const World& world = spec_of(leaf)->mesh().world();
    const bool one_world = spec_of(waiting_.front().leaf)->mesh().world() == world;
    if (!one_world || bytes_ + bytes_in_bucket(leaf) > bucket_settings(world).max_bytes) reduce_those_without_group();
  }

  // `group`: null for a leaf without one.
  void add(const std::shared_ptr<const LeafGroup>& group, const at::Tensor& leaf, bool had_gradient) {
    if (group) {
      of(group).waiting.push_back({leaf, had_gradient});
      return;
    }
    waiting_.push_back({leaf, had_gradient});
    bytes_ += bytes_in_bucket(leaf);
  }

  // A reduced .grad is put aside, since it has another layout than the one that will be accumulated.
  void add_and_put_aside(const std::shared_ptr<const LeafGroup>& group, const at::Tensor& leaf) {
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
      const bool is_member = is_dtensor(other) && reduced_with(other) == group;  // still
      if (is_member && other.requires_grad() && own.arrived.count(other.unsafeGetTensorImpl()) == 0) return;
    }
    reduce(own.waiting);
  }

  // Those of incomplete groups, too. Then all are reduced.
  void reduce_all() {
    for (OfGroup& g : groups_) reduce(g.waiting);
    reduce_those_without_group();
    for (const WaitingGradients& w : under_way_) wait_until_reduced(w);
    for (const WaitingGradients& w : std::exchange(under_way_, {})) take_sums(w);
  }

  // Restores the gradients in the bucket to their state before this backward; one that was Partial already may keep
  // additions. Communicates nothing.
  void undo_all() {
    if (late) late->undo_all();
    undo(std::exchange(waiting_, {}));
    for (OfGroup& g : groups_) undo(std::exchange(g.waiting, {}));
    for (const WaitingGradients& w : std::exchange(under_way_, {})) undo(w);
  }

  void part(const at::Tensor& leaf, const at::Tensor& gradient) {
    passed_.emplace_back(leaf, gradient.getIntrusivePtr());
  }
  void part_kept() {
    const c10::AutoGradMode no_grad(false);
    for (const auto& [leaf, gradient] : std::exchange(passed_, {})) {
      if (!leaf.grad().defined()) continue;
      if (!gradient.expired()) {
        leaf.mutable_grad() = leaf.grad().clone();
        meta_without_sync(leaf.grad()).storage->shared = true;  // as on ranks that kept none: writes keep the layout
      }
      offload_gradient(leaf);
    }
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<std::pair<at::Tensor, WeakTensor>> passed_;

  struct OfGroup {
    std::shared_ptr<const LeafGroup> group;
    WaitingGradients waiting;
    std::set<const c10::TensorImpl*> arrived;
  };

  OfGroup& of(const std::shared_ptr<const LeafGroup>& group) {
    const auto known = std::find_if(groups_.begin(), groups_.end(), [&](const OfGroup& g) { return g.group == group; });
    return known == groups_.end() ? groups_.emplace_back(OfGroup{group, {}, {}}) : *known;
  }
  void reduce_those_without_group() {
    reduce(waiting_);
    bytes_ = 0;
  }
  // With overlap only begins it.
  void reduce(WaitingGradients& waiting) {
    if (waiting.empty()) return;
    const bool overlap = bucket_settings(spec_of(waiting.front().leaf)->mesh().world()).overlap;
    begin_to_reduce(waiting, overlap);
    if (overlap) {
      under_way_.push_back(std::exchange(waiting, {}));
    } else {
      take_sums(std::exchange(waiting, {}));
    }
  }

  WaitingGradients waiting_;                 // without a group
  int64_t bytes_ = 0;                        // of these
  std::vector<OfGroup> groups_;              // in the order of their first gradients, the same on all ranks
  std::vector<WaitingGradients> under_way_;  // reductions in the order in which they began
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
      bucket->undo_all();
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

bool put_in_bucket(const at::Tensor& leaf, const at::Tensor& gradient) {
  const Spec& from = *spec_of(gradient);
  const bool of_any_size = leaf_group_of(leaf) != nullptr;
  const bool fits =
      from.mesh() == spec_of(leaf)->mesh() && (of_any_size || bytes_in_bucket(gradient) <= bytes_in_bucket(leaf));
  if (!may_wait_in_bucket() || !fits) return false;
  const auto group = reduced_with(leaf);
  GradientBucket& bucket = current_bucket();
  const bool is_first = !bucket.holds(leaf), has_gradient = leaf.grad().defined();
  if (is_first && !group) bucket.make_room_for(leaf);
  if (is_first && of_any_size) {
    bucket.add_and_put_aside(group, leaf);
    return true;
  }
  if (has_gradient && !open_gradient(leaf.grad(), from.placements())) return false;
  if (is_first) bucket.add(group, leaf, has_gradient);
  return true;
}

void note_accumulated(const at::Tensor& leaf) {
  const auto group = reduced_with(leaf);
  if (group && may_wait_in_bucket()) current_bucket().arrived(group, leaf);
}

void part_in_the_end(const at::Tensor& leaf, const at::Tensor& gradient) { current_bucket().part(leaf, gradient); }

std::shared_ptr<DeferredWork> deferred_work(const std::function<std::shared_ptr<DeferredWork>()>& make) {
  GradientBucket& bucket = current_bucket();
  std::lock_guard lock(buckets().mutex);
  if (!bucket.late) bucket.late = make();
  return bucket.late;
}

}  // namespace dtensor::internal
