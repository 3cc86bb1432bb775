#include "sharded/state_dict.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "dtensor/redistribute_parts.h"
#include "sharded/dtensor_bridge.h"
#include "sharded/shard_tensor.h"
#include "sharded/sharded_tensor_state.h"
#include "sharded/spread.h"
#include "sharded/tensor_ops.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

// The module that has the parameter called `path`, and its name there.
std::pair<torch::nn::Module*, std::string> owner_of(torch::nn::Module& module, const std::string& path) {
  torch::nn::Module* owner = &module;
  size_t begin = 0;
  for (size_t dot; (dot = path.find('.', begin)) != path.npos; begin = dot + 1) {
    auto children = owner->named_children();
    const auto child = children.find(path.substr(begin, dot - begin));
    TORCH_INTERNAL_ASSERT(child != nullptr);
    owner = child->get();
  }
  return {owner, path.substr(begin)};
}

// The tensor that a checkpoint saves instead, and what to restore after a load.
struct Stored {
  at::Tensor tensor;
  bool shares_memory = true;
};

Stored stored(const at::Tensor& t) {
  if (!is_sharded(t)) return {t, true};
  const ShardedTensor st = detach(ShardedTensor(t));
  if (placements_of(st)) return {to_dtensor(st), true};
  const DeviceMesh& mesh = st.process_group().mesh();
  return {to_dtensor(st, mesh, {st.dim() > 0 ? dtensor::Shard(0) : Replicate()}), false};
}

void bring_back(const at::Tensor& loaded, const ShardedTensor& st) {
  const World& world = st.process_group().world();
  const RankPieces parts =
      to_parts(loaded, Layout(world, boxes_of(st.metadata(), st.process_group())), {.function = "load_checkpoint"});
  for (size_t i = 0; i < parts.size(); ++i) {
    auto& shards = st.local_shards(world.owned_ranks()[i]);
    for (size_t k = 0; k < shards.size(); ++k) shards[k].tensor.copy_(parts[i][k]);
  }
}

CheckpointContents contents_of(const std::map<std::string, Stored>& tensors) {
  CheckpointContents contents;
  for (const auto& [name, s] : tensors) contents.tensors.emplace(name, s.tensor);
  contents.random_state = false;
  return contents;
}

std::map<std::string, Stored> all_stored(const NamedTensors& tensors) {
  std::map<std::string, Stored> result;
  for (const auto& [name, t] : tensors) result.emplace(name, stored(t));
  return result;
}

World world_of(const NamedTensors& tensors, const World& given) {
  if (given.defined()) return given;
  for (const auto& [name, t] : tensors) {
    if (is_sharded(t)) return ShardedTensor(t).process_group().world();
  }
  return {};
}

}  // namespace

NamedTensors state_dict(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& list : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : list) result.emplace(item.key(), item.value());
  }
  return result;
}

void load_state_dict(torch::nn::Module& module, const NamedTensors& values) {
  c10::AutoGradMode no_grad(false);
  std::vector<std::tuple<std::string, at::Tensor, at::Tensor>> found;  // name, the module's, its value
  for (const auto& [name, target] : state_dict(module)) {
    const auto it = values.find(name);
    if (it == values.end()) continue;
    const at::Tensor& value = it->second;
    TORCH_CHECK_VALUE(is_sharded(value) || !is_sharded(target), "[load_state_dict] '", name,
                      "' is sharded, its value a plain tensor: shard_tensor() it, or use load_checkpoint()");
    TORCH_CHECK_VALUE(is_sharded(value) || target.sizes() == value.sizes(), "[load_state_dict] '", name,
                      "' is of sizes ", target.sizes(), ", its value of ", value.sizes());
    found.emplace_back(name, target, value);
  }
  for (const auto& [name, target, value] : found) {
    if (is_sharded(value)) {
      const auto [owner, leaf] = owner_of(module, name);
      set_parameter(*owner, leaf, ShardedTensor(value));
    } else {
      target.copy_(value);
    }
  }
}

void save_checkpoint(const std::string& folder, const NamedTensors& tensors, const SaveCheckpointOptions& options) {
  c10::AutoGradMode no_grad(false);
  SaveCheckpointOptions with_world = options;
  with_world.world = world_of(tensors, options.world);
  dtensor::save_checkpoint(folder, contents_of(all_stored(tensors)), with_world);
}

void load_checkpoint(const std::string& folder, const NamedTensors& tensors, const LoadCheckpointOptions& options) {
  c10::AutoGradMode no_grad(false);
  LoadCheckpointOptions with_world = options;
  with_world.world = world_of(tensors, options.world);
  const std::map<std::string, Stored> targets = all_stored(tensors);
  CheckpointContents contents = contents_of(targets);
  dtensor::load_checkpoint(folder, contents, with_world);
  for (const auto& [name, s] : targets) {
    if (!s.shares_memory) bring_back(s.tensor, ShardedTensor(tensors.at(name)));
  }
}

}  // namespace dtensor::sharded
