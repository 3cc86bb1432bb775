// Turns the parameters and buffers of a module into distributed tensors, in place: `linear->weight` and the module's
// own lists follow, optimizers made before or after see the same parameters, and the model's code stays as it is.
//
//   distribute_module(*model, mesh, [](const std::string& name, torch::nn::Module& m, const DeviceMesh& mesh) {
//     if (auto* linear = m.as<torch::nn::Linear>()) shard_parameter(m, "weight", mesh, {Replicate(), Shard(0)});
//   });
//
// Source: torch.distributed.tensor.distribute_module. Input and output hooks need a module around the module:
// distributed_module.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "observe/layout_picture.h"
#include "placement/placement.h"

namespace torch::nn {
class Module;
}

namespace dtensor {

// Called for the module itself (name "") and every submodule ("layers.0.attn").
using PartitionFn = std::function<void(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh)>;

// Distributes the parameters and buffers that `partition_fn` passes to shard_parameter(), and replicates the others;
// all of them without a `partition_fn`. Existing gradients follow. Parameters that were one tensor, or shared memory,
// are still tied afterwards. Parameters get their path as name, for reports. Communicates only to send each value from
// the first rank. Tensors made without data stay so: see meta_device.h. Tensors made in a MeshScope of `mesh` may be
// sharded. Errors (ValueError): no mesh; every parameter of the module is distributed already; a parameter on a mesh of
// another world; tied parameters with different layouts; a `partition_fn` that distributes nothing, as its names match
// no module. After an error the module is unchanged.
void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh, const PartitionFn& partition_fn = nullptr);

// Distributes one parameter or buffer of `module`, "weight" or with a path, "attn.wq.weight". Does nothing if it has
// this layout; one that is replicated on this mesh can still be sharded.
// Errors (ValueError): no such parameter (the text lists the existing ones), it has another layout, placements do not
// fit.
void shard_parameter(torch::nn::Module& module, const std::string& name, const DeviceMesh& mesh,
                     const Placements& placements);

// Gives the distributed parameters and buffers their paths as names, after `prefix`. distribute_module() does so;
// copies of parameters (clone(), to(dtype)) have no names until this is called.
void name_parameters(torch::nn::Module& module, const std::string& prefix = "");

// Constants that a module keeps as plain members (rotary tables, diffusion schedules, anchors) are no parameters and no
// buffers, so that distribute_module() cannot see them:
//
//   replicate_members(*model, {&model->freqs, &model->head->anchors});
//
// Replaces each plain tensor by a distributed one, Replicate on every mesh dim, with the values of the first rank.
// Members that are one tensor stay one; other handles of a tensor stay plain. Tensors already replicated on the mesh
// are unchanged. Errors (ValueError), before anything changes: no mesh; a null pointer, an undefined tensor, one with
// autograd history, or a distributed one with another layout. The text names its position in the list.
void replicate_members(const DeviceMesh& mesh, const std::vector<at::Tensor*>& members);

// The same on the mesh of the module's distributed parameters and buffers. Errors (ValueError): it has none, or they
// are on several meshes.
void replicate_members(const torch::nn::Module& module, const std::vector<at::Tensor*>& members);

// The layouts of a module's distributed parameters, for pictures and tables.
std::vector<NamedSpec> parameter_layouts(const torch::nn::Module& module);

}  // namespace dtensor
