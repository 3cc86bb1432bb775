// Hooks for the results of a module's forward. (Templates over torch::nn: compiled with the program.)
//
//   auto fc2 = with_output_hooks(torch::nn::Linear(8, 4));   // a Linear with the same parameters
//   reshard_output(*fc2, ChunkShardingSpec(0, ranks));       // a sharded output is resharded to this spec
//   collect_local_shard(*fc2);                               // and becomes its local shard
//   fc2(x);
//
// C++ modules have no forward hooks, so these live in a class derived from the module's own, as in
// dtensor/distributed_module.h: it is an M that shares the parameters, buffers and submodules of the original, and
// extends forward(). A call through a pointer to M reaches the hooks only if M's forward is virtual.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtensor/forward_tensors.h"
#include "sharded/sharding_spec.h"

namespace dtensor::sharded {

// Gets a tensor that forward returns, and returns its replacement.
using OutputHook = std::function<at::Tensor(const at::Tensor& output)>;

// The part of a module that runs its hooks, in the order in which they were added.
class OutputHooks {
 public:
  virtual ~OutputHooks() = default;
  void add_output_hook(OutputHook hook) { hooks_.push_back(std::move(hook)); }
  at::Tensor run_output_hooks(at::Tensor output) const {
    for (const OutputHook& hook : hooks_) output = hook(output);
    return output;
  }

 private:
  std::vector<OutputHook> hooks_;
};

// A sharded output is resharded, others are unchanged. Returns the module.
OutputHooks& reshard_output(OutputHooks& module, const AnyShardingSpec& spec);
// A sharded output becomes its local shard; of a chunk spec, if that has size 1 in the sharded dim, without this dim.
// Others are unchanged. Error (ValueError): a process with several ranks; there, call local_shards_of() on the output.
OutputHooks& collect_local_shard(OutputHooks& module);

// The results of collect_local_shard() for every rank of the group that this process owns.
std::vector<at::Tensor> local_shards_of(const at::Tensor& output);

// REQUIRES: M is copyable, as modules are by default, and its forward returns tensors (in lists, tuples, optionals,
// too).
template <typename M>
class OutputHookedImpl : public M, public OutputHooks {
  static_assert(std::is_copy_constructible_v<M>,
                "a hooked module is a copy of the original that shares its parameters");

 public:
  explicit OutputHookedImpl(const std::shared_ptr<M>& original)
      : M((original->name(), std::as_const(*original))) {}  // name() settles the class name before it is copied

  template <typename... Args>
  auto forward(Args&&... args) {
    auto result = M::forward(std::forward<Args>(args)...);
    static_assert(!std::is_same_v<decltype(result), ShardedTensor>,
                  "a hook may make it a plain tensor: let forward give at::Tensor");
    std::vector<at::Tensor*> places;
    dtensor::internal::collect(result, places);
    for (at::Tensor* place : places) *place = run_output_hooks(*place);
    return result;
  }

  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<OutputHookedImpl>(std::dynamic_pointer_cast<M>(M::clone(device)));
    static_cast<OutputHooks&>(*copy) = *this;
    return copy;
  }
};

// Module holder, like torch::nn::Linear for LinearImpl.
template <typename M>
class OutputHooked : public torch::nn::ModuleHolder<OutputHookedImpl<M>> {
 public:
  using torch::nn::ModuleHolder<OutputHookedImpl<M>>::ModuleHolder;
  template <typename... Args>
  auto operator()(Args&&... args) {
    return this->get()->forward(std::forward<Args>(args)...);
  }
};

template <typename M, typename = std::enable_if_t<std::is_base_of_v<torch::nn::Module, M>>>
OutputHooked<M> with_output_hooks(const std::shared_ptr<M>& module) {
  return OutputHooked<M>(std::make_shared<OutputHookedImpl<M>>(module));
}
template <typename M>
OutputHooked<M> with_output_hooks(const torch::nn::ModuleHolder<M>& module) {
  return with_output_hooks(module.ptr());
}

}  // namespace dtensor::sharded
