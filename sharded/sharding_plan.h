// How the parts of a module are sharded: parameters by specs, submodules by Sharders
// (torch.distributed._shard.sharding_plan).
//
//   ShardingPlan plan{{{"fc1.weight", ChunkShardingSpec(0, ranks)},        // a parameter, by its path
//                      {"bags", std::make_shared<BagSharder>()}}};         // a submodule, by its path
//   plan.output_plan = {{"fc2", ChunkShardingSpec(0, ranks)}};             // the output of fc2; "" is the module
//   itself
//   plan.return_local_tensor = {{"fc2"}};                                  // and of that the local shard
//   shard_module(*model, plan, world);
//
// A Sharder's module replaces its argument as the parent's child. C++ models call their children through typed members,
// which cannot be replaced from outside; so a parent whose child may be replaced looks it up at each use:
//
//   auto bags = submodule<BagCollection>(*this, "bags");   // the present child, by the type that is called
//
// C++ modules have no hooks either; the modules in `output_plan` and `return_local_tensor` must be OutputHooked
// (output_hooks.h).
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sharded/errors.h"
#include "sharded/process_group.h"
#include "sharded/sharding_spec.h"

namespace dtensor::sharded {

class Sharder {
 public:
  virtual ~Sharder() = default;
  // The module that replaces `module`; may be the same. Called on every process alike.
  virtual std::shared_ptr<torch::nn::Module> shard(const std::shared_ptr<torch::nn::Module>& module) = 0;
};

// A value; nothing is checked before shard_module().
struct ShardingPlan {
  using Entry = std::variant<AnyShardingSpec, std::shared_ptr<Sharder>>;
  using Entries = std::vector<std::pair<std::string, Entry>>;

  Entries plan;                                       // by path, in the order of the work
  std::optional<Entries> output_plan = std::nullopt;  // specs alone
  std::optional<std::vector<std::string>> return_local_tensor = std::nullopt;
};

class ShardingPlanner {
 public:
  virtual ~ShardingPlanner() = default;
  // The same on every process.
  virtual ShardingPlan build_plan(const torch::nn::Module& module) = 0;
};

// Does what the plan says. Collective over the group; `src_rank` as in shard_tensor(). The plan is checked as a whole
// first, so that nothing has changed after one of these errors:
//   KeyError          "Module path must not be empty for custom sharder!"
//   c10::Error        a parameter within a submodule that has a Sharder ("... should not conflict with the submodule
//                     tree that a Sharder is working with!"), by whole names: "ebc2" is not within "ebc"
//   TypeError         "Only `ShardingSpec` and `Sharder` are supported to shard 'fc1.weight'": an entry that is null;
//                     "Only `ShardingSpec` is supported as output_plan for 'fc2'"; a module that is not OutputHooked; a
//                     child of a Sequential or ModuleList, which have lists of their own (a ModuleDict's is replaced)
//   AttributeError    "Net has no attribute `fc3`", of a module or parameter
//   ValueError        a path twice
// Later ones are the spec's, shard_parameter()'s and the Sharder's; what came before in the plan is done then.
void shard_module(torch::nn::Module& module, const ShardingPlan& plan, const ProcessGroup& group, int64_t src_rank = 0);

// The submodule at a path, "encoder.layers.0". Error (AttributeError): none. REQUIRES: the path is not empty.
std::shared_ptr<torch::nn::Module> find_submodule(const torch::nn::Module& module, const std::string& path);

// The same as an M. Error (TypeError): it is none.
template <typename M>
std::shared_ptr<M> submodule(const torch::nn::Module& module, const std::string& path) {
  const auto found = find_submodule(module, path);
  auto typed = std::dynamic_pointer_cast<M>(found);
  TORCH_CHECK_TYPE(typed != nullptr, module.name(), ": the submodule '", path, "' is now a ", found->name(),
                   ", which is no ", c10::demangle(typeid(M).name()),
                   ": a Sharder must give a module that can be called as the one it replaces");
  return typed;
}

}  // namespace dtensor::sharded
