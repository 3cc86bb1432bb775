#include "dtensor/hook_watch.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

void watch(const at::Tensor& t, const std::shared_ptr<HookWatch>& watch) {
  if (!is_dtensor(t)) return;
  auto& present = meta_without_sync(t).storage->hook_watches;
  HookWatches watches = present ? *present : HookWatches();
  std::erase_if(watches, [&](const auto& w) { return w == watch || w->over(); });
  watches.push_back(watch);
  present = std::make_shared<const HookWatches>(std::move(watches));
}

}  // namespace

void watch_hooks(const torch::nn::Module& module, const std::shared_ptr<HookWatch>& hooks) {
  if (hooks->over()) return;
  for (const at::Tensor& t : module.parameters()) watch(t, hooks);
  for (const at::Tensor& t : module.buffers()) watch(t, hooks);
}

void keep_hook_watches(const at::Tensor& from, const at::Tensor& to) {
  auto& present = meta_without_sync(to).storage->hook_watches;
  if (is_dtensor(from) && !present) present = meta_without_sync(from).storage->hook_watches;
}

}  // namespace dtensor::internal
