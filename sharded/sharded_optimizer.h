// An optimizer of torch::optim over parameters of which some are sharded (torch.distributed.optim.ShardedOptimizer).
//
//   ShardedOptimizer<torch::optim::Adam> adam(named_params_with_sharded_tensor(*model),
//   torch::optim::AdamOptions(1e-3));
//   adam.zero_grad();
//   loss(*model).backward();          // local shards get gradients
//   adam.step();                      // of every rank, without communication
//
// It steps plain parameters, and the local shards' tensors of sharded ones. So it is correct for elementwise
// optimizers: SGD, Adam, AdamW, Adagrad, RMSprop, and others that do; LBFGS does not compile.
#pragma once

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "checkpoint/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace dtensor::sharded {

using NamedParams = torch::OrderedDict<std::string, at::Tensor>;

// The trained tensors of a module, by path: sharded buffers first (in Python: sharded tensors that are plain
// attributes), then all parameters, sharded and plain; each tensor once.
NamedParams named_params_with_sharded_tensor(const torch::nn::Module& module, const std::string& prefix = "",
                                             bool recurse = true);

// The same with copied values, which no step changes.
NamedParams deepcopy(const NamedParams& params);

// The tensors that an optimizer steps: plain tensors, and the shards of this process.
std::vector<at::Tensor> local_params(const NamedParams& params);

namespace internal {
// ShardedOptimizer::state_dict() for any Optimizer.
NamedTensors optimizer_state_dict(torch::optim::Optimizer& optimizer, const NamedParams& params);
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const NamedParams& params,
                               const NamedTensors& state);
}  // namespace internal

template <typename Optimizer>
class ShardedOptimizer {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Optimizer>, "an optimizer of torch::optim");
  static_assert(!std::is_same_v<Optimizer, torch::optim::LBFGS>,
                "LBFGS takes products of all parameters; a rank has a part of them only");

 public:
  // `options`: the arguments of Optimizer after its parameters. Steps the tensors that are the shards at this time.
  template <typename... Options>
  explicit ShardedOptimizer(NamedParams params, Options&&... options)
      : params_(std::move(params)), optimizer_(local_params(params_), std::forward<Options>(options)...) {}

  void zero_grad(bool set_to_none = true) { optimizer_.zero_grad(set_to_none); }
  // The result of the closure; undefined without one.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) {
    return optimizer_.step(std::move(closure));
  }

  // The inner optimizer, and its groups and states: by the local tensors.
  Optimizer& optimizer() { return optimizer_; }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() { return optimizer_.param_groups(); }
  auto& state() { return optimizer_.state(); }
  const NamedParams& named_params() const { return params_; }

  // "state.fc.weight.exp_avg": moments, sharded as their parameters are; "state.fc.weight.step" and
  // "param_groups.0.lr": numbers. Copies. Collective. (PyTorch does not have this.)
  NamedTensors state_dict() { return internal::optimizer_state_dict(optimizer_, params_); }
  // Loads the result of state_dict(), also from other specs and numbers of ranks. Parameters without an entry have no
  // state then. Collective. Errors (ValueError), before anything is changed: an unknown name; another shape; a plain
  // moment of a sharded parameter, or vice versa.
  void load_state_dict(const NamedTensors& state) { internal::load_optimizer_state_dict(optimizer_, params_, state); }
  // Error, always (NotImplementedError): "ShardedOptimizer add_param_group not implemented yet!", as in PyTorch.
  void add_param_group(const torch::optim::OptimizerParamGroup&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "ShardedOptimizer add_param_group not implemented yet!");
  }

 private:
  NamedParams params_;
  Optimizer optimizer_;
};

}  // namespace dtensor::sharded
