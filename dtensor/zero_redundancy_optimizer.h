// An optimizer of torch::optim whose states are sharded over the ranks that have copies of the parameters (ZeRO).
//
//   ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer({.mesh_dim = "dp"}, model->parameters(), 1e-3);
//   loss.backward();
//   optimizer.step();
//
// In a step each rank updates a part of every parameter that has a gradient and is replicated over the mesh dim: one
// n-th of its longest dim, so that a rank keeps one n-th of the states. Then the parts are gathered, several parameters
// in one all_gather up to gradient_bucket_bytes(). Gradients are as after backward: reduced (ZeRO-1), or, if backward
// ran in a DelayGradientReduction, Partial, and then reduce-scattered in the step instead of all-reduced (ZeRO-2
// without its saving of memory for gradients). Parameters without a dim that is free, or that are sharded over the mesh
// dim already, are updated as usual.
//
// It is an optimizer of the given class: learning rate schedulers, save() and load() take it, and so does GradScaler,
// if gradients are not Partial. States of SGD, Adam, AdamW, RMSprop and Adagrad that were loaded or made before are
// sharded in the next step in which their parameter has a gradient. All ranks call step() alike. If the optimizer
// throws, parameters have their values from before the step. Source: Rajbhandari et al., ZeRO: Memory Optimizations
// Toward Training Trillion Parameter Models, SC 2020; torch.distributed.optim.ZeroRedundancyOptimizer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <string>
#include <utility>

#include "dtensor/optimizer/sharded_step.h"

namespace dtensor {

struct ZeroRedundancyOptions {
  std::string mesh_dim = "";  // over which parameters are replicated; "": the only one of the mesh
};

// `Optimizer`: SGD, Adam, AdamW, RMSprop, Adagrad, or another class with step(closure = nullptr), which evaluates the
// closure once.
template <typename Optimizer>
class ZeroRedundancyOptimizer : public Optimizer {
 public:
  // `args`: those of Optimizer. Error (ValueError): no parameter is distributed on a mesh with that dim.
  template <typename... Args>
  explicit ZeroRedundancyOptimizer(ZeroRedundancyOptions options, Args&&... args)
      : Optimizer(std::forward<Args>(args)...), options_(std::move(options)) {
    internal::check_mesh_dim_of_states(*this, options_.mesh_dim);
  }

  at::Tensor step(std::function<at::Tensor()> closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const c10::AutoGradMode with_grad(true);
      loss = closure();
    }
    internal::ShardedStep parts(*this, options_.mesh_dim);
    Optimizer::step();
    parts.finish();
    return loss;
  }

 private:
  ZeroRedundancyOptions options_;
};

}  // namespace dtensor
