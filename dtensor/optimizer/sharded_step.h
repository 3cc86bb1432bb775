// One step of an optimizer in which each rank updates a part of the parameters that it has whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace dtensor::internal {

// Error (ValueError): no parameter of the optimizer is distributed on a mesh with that dim; "" and a mesh with several.
void check_mesh_dim_of_states(torch::optim::Optimizer& optimizer, const std::string& mesh_dim);

// As long as it lives, parameters that are replicated over the mesh dim and have a gradient are sharded over it, with
// their gradients and states: by their longest dim that no mesh dim shards, the first of equal ones. Parameters without
// such a dim, or in the memory of another parameter, stay whole. Gradients that are Partial are reduced on the way;
// nothing else communicates. REQUIRES: outside backward; all ranks alike.
class ShardedStep {
 public:
  ShardedStep(torch::optim::Optimizer& optimizer, const std::string& mesh_dim);
  // Without finish(), as after an error of the optimizer: parameters have their values from before.
  ~ShardedStep();
  ShardedStep(const ShardedStep&) = delete;
  ShardedStep& operator=(const ShardedStep&) = delete;

  // Gathers the parts, several parameters in one all_gather up to gradient_bucket_bytes(), and writes them to the
  // memory of the parameters. Gradients are those from before, states stay sharded.
  void finish();

 private:
  struct Whole {
    at::Tensor parameter;
    c10::intrusive_ptr<c10::BackendMeta> contents;  // layout and memory of the parameter
    int64_t offset = 0;
    at::Tensor gradient;
  };
  static void restore(const Whole& w) noexcept;

  std::vector<Whole> whole_;
};

}  // namespace dtensor::internal
