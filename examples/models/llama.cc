#include "examples/models/llama.h"

#include <ATen/ops/_grouped_mm.h>

#include "dtensor/distribute_module.h"
#include "dtensor/experts.h"
#include "dtensor/parallel_style.h"
#include "examples/models/layouts.h"

namespace examples {

using dtensor::ColwiseParallel;
using dtensor::Replicate;
using dtensor::RowwiseParallel;
using dtensor::SequenceParallel;
using dtensor::Shard;

torch::Tensor LlamaExpertsImpl::forward(const torch::Tensor& x, const torch::Tensor& scores, const torch::Tensor& ids) {
  const dtensor::ExpertTokens sent = dtensor::moe_dispatch(x, ids, {gate, up, down}, "ep");
  std::vector<torch::Tensor> results;
  for (size_t i = 0; i < sent.rows.size(); ++i) {
    const auto product = [&](const torch::Tensor& rows, size_t weight) {
      return at::_grouped_mm(rows, sent.weights[weight][i], sent.offsets[i]);
    };
    results.push_back(product(torch::silu(product(sent.rows[i], 0)) * product(sent.rows[i], 1), 2));
  }
  return dtensor::moe_combine(sent, results, scores);
}

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
