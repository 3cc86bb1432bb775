#include "examples/models/llama.h"

#include "dtensor/distribute_module.h"
#include "dtensor/parallel_style.h"
#include "examples/models/layouts.h"

namespace examples {

using dtensor::ColwiseParallel;
using dtensor::Replicate;
using dtensor::RowwiseParallel;
using dtensor::SequenceParallel;
using dtensor::Shard;

void shard_llama(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh) {
  const std::string name = path.substr(path.rfind('.') + 1);
  for (const char* by_rows : {"tokens", "head", "wq", "wk", "wv", "gate", "up"}) {
    if (name == by_rows) shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(0)));
  }
  for (const char* by_columns : {"wo", "down"}) {
    if (name == by_columns) shard_parameter(module, "weight", mesh, over(mesh, "tp", Shard(1)));
  }
}

dtensor::ParallelPlan llama_styles(bool sequence) {
  const dtensor::Placement between = sequence ? Shard(1) : Replicate();
  return {{"tokens", RowwiseParallel({.output = between})},
          {"*norm", SequenceParallel({.input = between, .output = Replicate()})},
          {"blocks.*.w[qkv]", ColwiseParallel()},
          {"blocks.*.wo", RowwiseParallel({.output = between})},
          {"blocks.*.gate", ColwiseParallel()},
          {"blocks.*.up", ColwiseParallel()},
          {"blocks.*.down", RowwiseParallel({.output = between})},
          {"head", ColwiseParallel()}};
}

}  // namespace examples
