#include "dtensor/parallel/hook_watch.h"

#include <torch/nn/module.h>

#include <vector>

#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/module_traits.h"

namespace dtensor::internal {

void watch_hooks(const torch::nn::Module& module, const std::shared_ptr<HookWatch>& hooks) {
  if (hooks->over()) return;
  const auto watch = [&](const at::Tensor& t) {
    if (!is_dtensor(t)) return;
    change_module_traits(t, [&](ModuleTraits& traits) {
      std::erase_if(traits.hook_watches, [&](const auto& w) { return w == hooks || w->over(); });
      traits.hook_watches.push_back(hooks);
    });
  };
  for (const at::Tensor& t : module.parameters()) watch(t);
  for (const at::Tensor& t : module.buffers()) watch(t);
}

}  // namespace dtensor::internal
