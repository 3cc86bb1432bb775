#include "dtensor/gradients/leaf_group.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

using torch::autograd::hooks_list;

// A weak reference keeps the tensor's BackendMeta, and so its memory and this group, until it is dropped.
struct LeafGroup::Leaves {
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::mutex mutex;
  std::vector<WeakTensor> all;

  void drop_dead() {
    std::vector<WeakTensor> dead;  // their end may be that of the group
    std::lock_guard lock(mutex);
    const auto first_dead = std::stable_partition(all.begin(), all.end(), [](auto& leaf) { return !leaf.expired(); });
    dead.assign(std::make_move_iterator(first_dead), std::make_move_iterator(all.end()));
    all.erase(first_dead, all.end());
  }
};

// Deleter of a leaf's list of hooks, which ends with the leaf.
struct LeafGroup::AtEnd {
  std::shared_ptr<hooks_list> list;
  std::vector<std::weak_ptr<Leaves>> groups;
  void operator()(hooks_list*) const {
    for (const auto& weak : groups) {
      if (const auto leaves = weak.lock()) leaves->drop_dead();
    }
  }
};

LeafGroup::LeafGroup(const std::vector<at::Tensor>& leaves, std::optional<c10::ScalarType> reduce_dtype)
    : leaves_(std::make_shared<Leaves>()), reduce_dtype_(reduce_dtype) {
  for (const at::Tensor& leaf : leaves) {
    leaves_->all.emplace_back(leaf.getIntrusivePtr());
    watch(leaf, leaves_);
  }
}

void LeafGroup::watch(const at::Tensor& leaf, const std::shared_ptr<Leaves>& leaves) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::shared_ptr<hooks_list>& list = torch::autograd::impl::materialize_autograd_meta(leaf)->cpp_hooks_list_;
  if (list == nullptr) {
    if (!torch::autograd::impl::hooks(leaf).empty()) return;  // Python's, beside which there can be no list
    torch::autograd::impl::create_cpp_hook(leaf);
  }
  if (std::get_deleter<AtEnd>(list) == nullptr) list = std::shared_ptr<hooks_list>(list.get(), AtEnd{list, {}});
  auto& groups = std::get_deleter<AtEnd>(list)->groups;
  std::erase_if(groups, [](const auto& weak) { return weak.expired(); });
  groups.push_back(leaves);
}

std::vector<at::Tensor> LeafGroup::leaves() const {
  std::vector<at::Tensor> result;
  std::lock_guard lock(leaves_->mutex);
  for (const auto& leaf : leaves_->all) {
    if (auto alive = leaf.lock()) result.push_back(at::Tensor::wrap_tensor_impl(std::move(alive)));
  }
  return result;
}

std::shared_ptr<const LeafGroup> leaf_group_of(const at::Tensor& leaf) {
  const auto& traits = meta_without_sync(leaf).storage->parameter->traits;
  return traits ? traits->leaves : nullptr;
}

std::shared_ptr<const LeafGroup> reduced_with(const at::Tensor& leaf) {
  auto group = leaf_group_of(leaf);
  return group ? group : meta_without_sync(leaf).storage->parameter->gradient_bucket;
}

std::string common_module(const std::vector<at::Tensor>& leaves) {
  std::optional<std::string> common;
  for (const at::Tensor& leaf : leaves) {
    const DTensorMeta& meta = meta_without_sync(leaf);
    const std::string module = meta.name ? module_of(meta) : "";
    if (!common) common = module;
    while (!absl::StartsWith(absl::StrCat(module, "."), absl::StrCat(*common, ".")) && !common->empty()) {
      const size_t end = common->rfind('.');
      common->resize(end == std::string::npos ? 0 : end);
    }
  }
  return common.value_or("");
}

}  // namespace dtensor::internal
