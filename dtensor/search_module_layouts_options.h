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

#include "mesh/device_mesh.h"
#include "plan/cost_model.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace dtensor {

// A new model without layouts, and its loss as a tensor without dims. Both are used inside a MeshScope, so that the
// model has no data, however large it is.
struct ModelWithLoss {
  std::shared_ptr<torch::nn::Module> model;
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> loss;
};

struct SearchModuleLayoutsOptions {
  int64_t ranks = 0;              // all ways to write it as a product of the sizes of two mesh dims are tried
  std::string data_dim = "dp";    // inputs are sharded over it by dim 0, and groups of fully_shard()
  std::string tensor_dim = "tp";  // that the styles are about
  // False: the mesh is not tried, as tensor parallelism beyond a node. Unset: all are.
  std::function<bool(const DeviceMesh& mesh)> allows = nullptr;
  // Unset: a step is forward and backward; what optimizers hold counts only with one.
  std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)> optimizer = nullptr;
  int64_t max_bytes = std::numeric_limits<int64_t>::max();  // of a rank
  // Choices that are run at most, in equal shares for the meshes; besides, each class of the best may take one.
  int64_t max_steps = 5000;
  std::optional<CostModel> cost_model = std::nullopt;  // unset: that of a new abstract world
  c10::DeviceType device_type = c10::DeviceType::CPU;  // of the tensors
  // Called after each step with the number of steps so far, and the least seconds of a choice that fits (infinity: none
  // does yet).
  std::function<void(int64_t steps, double seconds)> progress = nullptr;
};

}  // namespace dtensor
