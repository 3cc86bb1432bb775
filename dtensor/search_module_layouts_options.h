// What search_module_layouts() searches for, and within which bounds.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/context_parallel.h"
#include "dtensor/layout_settings.h"
#include "mesh/device_mesh.h"
#include "plan/cost_model.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace dtensor {

// Which model is asked for.
struct ModelChoice {
  int64_t layers = 0;     // repeated layers, of a program that gives SearchModuleLayoutsOptions::layers
  NamedNumbers settings;  // one value for each of SearchModuleLayoutsOptions::settings

  // Error (ValueError): no such setting; the text lists them.
  int64_t setting(const std::string& name) const;
};

// A new model without layouts, and its loss as a tensor without dims. Both are used inside a MeshScope, so that the
// model has no data, however large it is.
struct ModelWithLoss {
  std::shared_ptr<torch::nn::Module> model;
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> loss;
};

using MakeModel = std::function<ModelWithLoss(const ModelChoice&)>;

struct SearchModuleLayoutsOptions {
  // All ways to write it, divided by the number of pipeline ranks, as a product of the sizes of the mesh dims are
  // tried, but those with more ranks for the rows of inputs than a micro-batch has rows.
  int64_t ranks = 0;
  std::string data_dim = "dp";    // inputs are sharded over it by dim 0, and groups of fully_shard()
  std::string tensor_dim = "tp";  // that the styles are about
  // Sizes of a further mesh dim to try, after the data dim: inputs are sharded over it by dim 0, too, and groups of
  // fully_shard() over it alone, so that the ranks of the data dim have copies of them (hybrid sharding). Empty: there
  // is no such dim.
  std::vector<int64_t> shard_sizes = {};
  std::string shard_dim = "fsdp";
  // Sizes of a further mesh dim to try, after these, whose name the model gives to moe_dispatch(): inputs are
  // sharded over it by dim 0, too. Empty: there is no such dim.
  std::vector<int64_t> expert_sizes = {};
  std::string expert_dim = "ep";
  // Patterns of the modules whose own parameters are weights of experts, [number of experts, ...] each. They are
  // sharded by dim 0 over the expert dim, by dim 1 over that of groups where the choice has groups of fully_shard(),
  // and have no style.
  std::vector<std::string> experts = {};
  // Sizes of a further mesh dim to try, before the tensor dim, for sequences: inputs with two dims or more are sharded
  // over it by dim 1, and where it has several ranks a step runs in a scope ContextParallel(context_dim,
  // context_options), as the program then does. Empty: there is no such dim.
  std::vector<int64_t> context_sizes = {};
  std::string context_dim = "cp";
  ContextParallelOptions context_options = {};
  // False: the mesh, in a pipeline that of a pipeline rank, is not tried, as tensor parallelism beyond a node. Unset:
  // all are.
  std::function<bool(const DeviceMesh& mesh)> allows = nullptr;
  LayoutSettings settings = {};  // numbers of the program, as whether it computes activations again
  // Numbers of micro-batches to try. A step computes the gradients of one after the other and adds them up. Each number
  // divides dim 0 of all inputs.
  std::vector<int64_t> micro_batches = {1};
  // Repeated layers of the model, if make() can make it with fewer, as ModelChoice::layers says. Then choices are tried
  // on models of 2 and 3 layers, as each further layer takes what the third one takes, and only the best on all layers:
  // for 126 layers 25 times as fast. 0: on the model that make() makes.
  int64_t layers = 0;
  // Numbers of stages of a pipeline to try; 1: no pipeline. Others need `layers`, of which the slowest stage has
  // ceil(layers / stages), and `between_layers`. Pipeline ranks are the outermost ranks: each has a mesh of its own of
  // ranks / (stages / stages_per_rank) consecutive ranks, which are whole nodes, or a node has several. Its step is
  // that of make() with the layers of its stages, as if tables, head and loss were on every pipeline rank.
  std::vector<int64_t> stages = {1};
  // To try, by the names that make_pipeline_schedule() takes: "interleaved 1F1B" only with numbers of micro-batches
  // that are multiples of the pipeline ranks. Both parts of a split backward are taken to be half of it.
  std::vector<std::string> schedules = {"1F1B"};
  int64_t stages_per_rank = 2;  // of "interleaved 1F1B"; others have one
  // The activation of the whole batch from one layer to the next, rows first: {batch, length, width}, as on the device
  // "meta". The tensor dim shards it by dim 1 where a style of the choice gives its output so.
  at::Tensor between_layers = {};
  // Unset: a step is forward and backward; what optimizers hold counts only with one.
  std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)> optimizer = nullptr;
  int64_t max_bytes = std::numeric_limits<int64_t>::max();  // of a rank
  // Groups of fully_shard() are gathered ahead, and gradients are reduced while backward goes on:
  // ModuleLayouts::overlap.
  bool overlap = false;
  // Choices that are run at most, in equal shares for the meshes, settings and numbers of micro-batches, but at least
  // one for each as long as there are any, and what is left for pairs of classes of the best; with pipelines, experts
  // or sequences the first one with a tensor dim larger than 1, and the first such pipeline, may take half of them.
  // Besides, each choice that is the best takes one on all layers, until one fits, and each class of it may take one.
  int64_t max_steps = 5000;
  std::optional<CostModel> cost_model = std::nullopt;  // unset: that of a new abstract world
  c10::DeviceType device_type = c10::DeviceType::CPU;  // of the tensors
  // Called after each choice, run or not, and at the end, with the number of steps so far, and the least seconds that
  // were predicted for a choice that fits (infinity: none does yet).
  std::function<void(int64_t steps, double seconds)> progress = nullptr;
};

}  // namespace dtensor
