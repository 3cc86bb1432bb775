#include "dtensor/parallel/module_contents.h"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

ModuleContents::ModuleContents(const torch::nn::Module& module) {
  const c10::AutoGradMode no_grad(false);
  const auto save = [&](const at::Tensor& t) {
    if (t.defined()) saved_.push_back({t, t.detach(), t.grad()});
  };
  for (const at::Tensor& p : module.parameters()) save(p);
  for (const at::Tensor& b : module.buffers()) save(b);
}

void ModuleContents::restore() const {
  const c10::AutoGradMode no_grad(false);
  const LocalGuard guard;  // plain tensors assigned to distributed ones
  for (const auto& [tensor, data, grad] : saved_) {
    tensor.set_data(data);
    tensor.mutable_grad() = grad;
  }
}

}  // namespace dtensor::internal
