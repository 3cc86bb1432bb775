// The contents of a module's parameters and buffers, to restore them after an error.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::internal {

class ModuleContents {
 public:
  // Those of now: shares them, copies nothing.
  explicit ModuleContents(const torch::nn::Module& module);
  void restore() const;

 private:
  struct Saved {
    at::Tensor tensor, data, grad;
  };
  std::vector<Saved> saved_;
};

}  // namespace dtensor::internal
