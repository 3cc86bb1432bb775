// Pipeline parallelism: the stages of a model are on meshes of their own, and several micro-batches of a step are under
// way at once. Activations and gradients move from mesh to mesh.
//
//   const DeviceMesh mesh(world, {2, 2, 2}, {"pp", "dp", "tp"});
//   const auto meshes = pipeline_meshes(mesh, "pp");                     // two meshes (dp, tp)
//   Pipeline pipeline(pipeline_stages(model, {0, 3}, meshes, partition), one_f_one_b_schedule(2, 4));
//   const auto losses = pipeline.step(inputs, [&](const at::Tensor& output, int64_t i) { return loss(output, labels[i]);
//   });
//   optimizer.step();
//
// Every process runs the whole program: for a stage of whose mesh it owns no rank, operators have no local tensors, so
// that processes of different stages compute at the same time. Transfers are redistribute() between two meshes with
// async_op, so that a rank goes on until it reads what arrives. Where the schedule splits a backward, nothing is
// computed twice but what a custom autograd function or checkpoint() computes for both parts
// (dtensor/gradients/split_backward.h). Source: torch.distributed.pipelining.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/pipeline_schedule.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace torch::nn {
class SequentialImpl;
}

namespace dtensor {

struct PipelineStage {
  DeviceMesh mesh;
  // From the activation of the stage before, or the input, on `mesh`, to the activation on `mesh`, with operators that
  // autograd knows. Runs in a MeshScope of `mesh`.
  std::function<at::Tensor(const at::Tensor&)> forward;
  // Their gradients are reduced once a step, after the last micro-batch. Those of other parameters that `forward` uses
  // stay Partial: call reduce_gradients().
  std::vector<at::Tensor> parameters;
  // Of the activation before `forward`. Empty: as it left the stage before, with Partial as Replicate.
  Placements input_placements;
};

class Pipeline {
 public:
  // Errors (ValueError): another number of stages than the schedule's; stages on one pipeline rank with different
  // meshes; a stage without forward; a schedule that cannot run (PipelineSchedule::simulate()).
  Pipeline(std::vector<PipelineStage> stages, PipelineSchedule schedule);

  // Forward and backward of one step in the order of the schedule. Adds to the gradients of the parameters those of the
  // mean over micro-batches of `loss(output, micro_batch)`, of one element. `inputs`: one for each micro-batch, on the
  // first stage's mesh. Returns the losses, without autograd history, on the last stage's mesh: redistribute() brings
  // them to another one. All processes call it alike. Errors (ValueError): another number of inputs than micro-batches;
  // an input, an activation or a loss that is plain or on another mesh; a loss of several elements. After an error some
  // gradients may have been added to: set them to zero.
  std::vector<at::Tensor> step(const std::vector<at::Tensor>& inputs,
                               const std::function<at::Tensor(const at::Tensor& output, int64_t micro_batch)>& loss);

  // Forward only, without autograd history: the outputs, on the last stage's mesh.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  const PipelineSchedule& schedule() const { return schedule_; }

 private:
  struct Step;
  at::Tensor run_stage(int64_t stage, const at::Tensor& input) const;

  std::vector<PipelineStage> stages_;
  PipelineSchedule schedule_;
  std::vector<PipelineAction> order_;
};

// The meshes along one dim of `mesh`, with its other dims: one for each pipeline rank. Errors: as of mesh.dim(); a mesh
// without other dims (ValueError): give it one of size 1.
std::vector<DeviceMesh> pipeline_meshes(const DeviceMesh& mesh, std::string_view dim);

// Stages of a Sequential: stage s has the modules from first_modules[s] to before first_modules[s + 1], on
// meshes[s % meshes.size()]. Parameters that are not distributed yet are: as `partition_fn` shards them, whose names
// are paths in `model` ("3.attn"), others replicated. Errors (ValueError): first_modules does not begin with 0 or does
// not increase, or exceeds the number of modules; a parameter on another mesh than its stage, as of a weight that two
// stages share.
std::vector<PipelineStage> pipeline_stages(torch::nn::SequentialImpl& model, const std::vector<int64_t>& first_modules,
                                           const std::vector<DeviceMesh>& meshes,
                                           const PartitionFn& partition_fn = nullptr);

}  // namespace dtensor
