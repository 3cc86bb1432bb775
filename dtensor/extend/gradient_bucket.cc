#include "dtensor/extend/gradient_bucket.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/scope.h"
#include "dtensor/extend/redistribute_autograd.h"
#include "dtensor/extend/representation.h"
#include "mesh/world.h"
#include "plan/largest_part.h"

namespace dtensor {
namespace {

// The leaves of one backward whose gradients wait. Used by the threads of that backward.
class GradientBucket {
 public:
  bool holds(const at::Tensor& leaf) const {
    return std::any_of(leaves_.begin(), leaves_.end(), [&](const at::Tensor& l) { return l.is_same(leaf); });
  }

  // Those that are there have gradients by now, but the last one.
  void add(const at::Tensor& leaf) {
    if (!leaves_.empty() && !(spec_of(leaves_.front())->mesh().world() == spec_of(leaf)->mesh().world())) reduce();
    const Spec& spec = *spec_of(leaf);
    const int64_t bytes = largest_part_bytes(spec.meta(), Layout(spec.mesh(), spec.placements()));
    if (bytes_ + bytes > kGradientBucketBytes) reduce();
    leaves_.push_back(leaf);
    bytes_ += bytes;
  }

  void reduce() {
    bytes_ = 0;
    const std::vector<at::Tensor> leaves = std::exchange(leaves_, {});
    if (!leaves.empty()) reduce_together(leaves, "gradient", /*implicit=*/true);
  }

 private:
  std::vector<at::Tensor> leaves_;
  int64_t bytes_ = 0;
};

// That of the present backward; it ends with it, also with one that fails.
GradientBucket& current_bucket() {
  static std::mutex mutex;
  static auto* buckets = new std::map<int, std::weak_ptr<GradientBucket>>;  // by the number of the backward
  std::lock_guard lock(mutex);
  const int number = torch::autograd::get_current_graph_task_id();
  if (const auto it = buckets->find(number); it != buckets->end()) {
    if (const auto bucket = it->second.lock()) return *bucket;
  }
  for (auto it = buckets->begin(); it != buckets->end();) it = it->second.expired() ? buckets->erase(it) : ++it;
  const auto bucket = std::make_shared<GradientBucket>();
  (*buckets)[number] = bucket;
  torch::autograd::Engine::get_default_engine().queue_callback([bucket] { bucket->reduce(); });  // and keeps it
  return *bucket;
}

// "layers.0" of "layers.0.weight" and "layers.0.norm.weight"; "" of none.
std::string common_module(const std::vector<at::Tensor>& leaves) {
  std::optional<std::string> common;
  for (const at::Tensor& leaf : leaves) {
    const DTensorMeta& meta = peek_meta(leaf);
    const std::string module = meta.name ? module_of(meta) : "";
    if (!common) common = module;
    while (!absl::StartsWith(absl::StrCat(module, "."), absl::StrCat(*common, ".")) && !common->empty()) {
      const size_t end = common->rfind('.');
      common->resize(end == std::string::npos ? 0 : end);
    }
  }
  return common.value_or("");
}

bool has_other_hooks(const at::Tensor& leaf) {
  const auto& hooks = torch::autograd::impl::hooks(leaf);
  if (hooks.size() > 1 || torch::autograd::impl::post_acc_grad_hooks(leaf) != nullptr) return true;
  const auto sink = torch::autograd::impl::try_get_grad_accumulator(leaf);
  return sink != nullptr && (sink->pre_hooks().size() > 1 || !sink->post_hooks().empty());
}

}  // namespace

bool waits_in_bucket(const at::Tensor& leaf, const at::Tensor& gradient) {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || !chosen->empty() || c10::GradMode::is_enabled() || leaf.grad().defined()) return false;
  const Spec &from = *spec_of(gradient), &to = *spec_of(leaf);
  if (!(from.mesh() == to.mesh()) || has_other_hooks(leaf)) return false;
  const Layout home(to.mesh(), to.placements());
  if (largest_part_bytes(from.meta(), Layout(from.mesh(), from.placements())) > largest_part_bytes(to.meta(), home)) {
    return false;
  }
  GradientBucket& bucket = current_bucket();
  if (!bucket.holds(leaf)) bucket.add(leaf);
  return true;
}

void reduce_together(const std::vector<at::Tensor>& leaves, const std::string& op, bool implicit) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> gradients;
  std::vector<Layout> to;
  for (const at::Tensor& leaf : leaves) {
    gradients.push_back(leaf.grad());
    to.emplace_back(spec_of(leaf)->mesh(), spec_of(leaf)->placements());
  }
  const auto& name = peek_meta(leaves.front()).name;
  std::string argument = name ? *name : "";
  if (name && leaves.size() > 1) absl::StrAppend(&argument, " and ", leaves.size() - 1, " more");
  const CommCause cause{op, argument, name ? common_module(leaves) : current_scope().module_path, implicit};
  const std::vector<at::Tensor> reduced = redistribute_as(gradients, to, cause);
  for (size_t i = 0; i < leaves.size(); ++i) leaves[i].mutable_grad() = reduced[i];
}

}  // namespace dtensor
