// Detects hooks of a DistributedModule that never run: marks parameters, of which check_hooks_ran()
// (dispatch/internal/module_call.h) throws the error.
//
// Forward of most modules is not virtual: a call through a pointer to the original's class (a typed member such as
// `torch::nn::Linear fc`) computes with the same parameters, but skips the hooks. Results would be silently wrong. So
// the memory of the parameters and buffers of a module that has hooks is marked, and an operator that computes with one
// of them before the hooks ever ran is an error.
#pragma once

#include <atomic>
#include <memory>
#include <string>

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

// Marks the distributed parameters and buffers of `module` and its submodules. May be repeated.
void watch_hooks(const torch::nn::Module& module, const std::shared_ptr<HookWatch>& watch);

}  // namespace dtensor::internal
