#include "dtensor/gradients/leaf_group.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

LeafGroup::LeafGroup(const std::vector<at::Tensor>& leaves, std::optional<c10::ScalarType> reduce_dtype)
    : reduce_dtype_(reduce_dtype) {
  for (const at::Tensor& leaf : leaves) leaves_.emplace_back(leaf.getIntrusivePtr());
}

std::vector<at::Tensor> LeafGroup::leaves() const {
  std::vector<at::Tensor> result;
  for (const WeakTensor& leaf : leaves_) {
    if (auto alive = leaf.lock()) result.push_back(at::Tensor::wrap_tensor_impl(std::move(alive)));
  }
  return result;
}

std::shared_ptr<const LeafGroup> leaf_group_of(const at::Tensor& leaf) {
  const auto& traits = meta_without_sync(leaf).storage->module_traits;
  return traits ? traits->leaves : nullptr;
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
