// Detects hooks of a DistributedModule that never run.
//
// Forward of most modules is not virtual: a call through a pointer to the original's class (a typed member such as
// `torch::nn::Linear fc`) computes with the same parameters, but skips the hooks. Results would be silently wrong. So
// the memory of the parameters and buffers of a module that has hooks is marked, and an operator that computes with one
// of them before the hooks ever ran is an error.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::internal {

class HookWatch {
 public:
  explicit HookWatch(std::string module) : module_(std::move(module)) {}
  const std::string& module() const { return module_; }  // for the error's text
  bool over() const { return over_.load(std::memory_order_relaxed); }
  void end() { over_.store(true, std::memory_order_relaxed); }  // call when the hooks ran, or need not run

 private:
  std::string module_;
  std::atomic<bool> over_{false};
};

// All watches of one tensor: a nested module is watched for itself and for the outer one.
using HookWatches = std::vector<std::shared_ptr<HookWatch>>;

// Marks the distributed parameters and buffers of `module` and its submodules. May be repeated.
void watch_hooks(const torch::nn::Module& module, const std::shared_ptr<HookWatch>& watch);
// Copies the watches of `from` to `to`, if `to` has none. REQUIRES: is_dtensor(to).
void keep_hook_watches(const at::Tensor& from, const at::Tensor& to);

}  // namespace dtensor::internal
