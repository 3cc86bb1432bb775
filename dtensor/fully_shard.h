// Fully sharded data parallelism: every rank keeps a part of each parameter, and gathers the parameters of a layer
// while it computes the layer.
//
//   for (auto& block : *model->blocks) fully_shard(*block, mesh);   // each call makes one group
//   fully_shard(*model, mesh);                                      // of the parameters that are in none yet
//   torch::optim::AdamW optimizer(model->parameters());
//
// The parameters of a group are gathered in one all-gather when an operator computes with the first of them, together
// with another tensor; the whole values stay until another group is gathered, and those of a group whose module
// contains modules of other groups until the end of backward. Their gradients are reduced in one reduce-scatter when
// the last of them has arrived, and at the end of backward if some parameters got none. Autograd, optimizers and
// checkpoints see the sharded parameters only; what reads or updates parameters alone gathers nothing.
//
// With mixed_precision = {.param_dtype = at::kBFloat16} (mixed_precision.h) each rank casts its parts of floating-point
// parameters before they are gathered. An operator that casts nothing takes the gathered values, which are rounded to
// param_dtype, in the dtype that the parameter has for it: a whole copy for the time of the call. A cast of a parameter
// to param_dtype is gathered with the group until it or the parameter is written to, and alone after that.
//
// With prefetch = true, when operators begin to use a group of the module, the gather of the next one begins: in
// forward in the order in which the program called fully_shard(), in backward in the reverse order. Groups whose module
// contains others stay, begin no gather, and are gathered ahead only as the last one. Two groups are gathered at a time
// then. Gathers are wasted where groups are used in another order, where backward takes no parameter of the next group
// (a table, a first layer whose input needs no gradient), and with a checkpoint() over several groups. Operators wait
// for a group when they use it. The gather goes on meanwhile where redistribute() with async_op does: between
// processes. One that a RedistributeMemoryLimit or ForbidWholeGather refuses is an error of the operator that began it.
//
// With offload = true the parts of parameters, their gradients and what optimizers keep are in host memory of ranks on
// GPUs (pinned, but for what optimizers keep), and optimizers compute on the CPU. Gathering a group copies its parts to
// the GPUs before, and reduced gradients are copied back; the program waits for these copies. What is computed or
// communicated with such tensors alone is in host memory, too; an operator that takes one and a tensor on a GPU
// computes on the GPU, unless it writes to the one in host memory. Parameters without dims stay on the GPUs. The memory
// meter counts GPU memory alone. Gradients of gradients are NotImplementedError. Of ranks on CPUs nothing changes.
//
// Source: torch.distributed.fsdp.fully_shard.
#pragma once

#include <cstdint>
#include <string>

#include "dtensor/mixed_precision.h"
#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace dtensor {

struct FullyShardOptions {
  std::string mesh_dim = "";            // that parameters are sharded over; "": the only one of the mesh
  bool reshard_after_forward = true;    // false: gathered values stay until the end of backward
  MixedPrecision mixed_precision = {};  // gathered in param_dtype, reduced in reduce_dtype
  bool prefetch = false;                // gather the groups in `module`, the new one included, ahead
  bool offload = false;                 // parts of parameters, gradients and optimizer states in host memory
  int64_t dim = 0;                      // of each parameter, which is sharded: its last one if it has fewer
};

// Makes one group of the parameters of `module` that are in none yet: each is sharded by its first dim, or by `dim`,
// evenly or not, over the mesh dim. On the other mesh dims parameters that are distributed on `mesh` stay as they are,
// so that tensor-parallel layouts come first; plain parameters are replicated there, and plain buffers everywhere.
// Parameters without dims are replicated and belong to no group. Gradients follow. Where a parameter is sharded by the
// same dim on a later mesh dim, it is a StridedShard: gathering it takes the one mesh dim only, where the cuts of both
// nest. Parameters and buffers get their paths in `module` as names, unless those of a larger module are known.
// Parameters of `module` that share memory stay tied. Those of two modules stay tied if they are one Tensor, or if one
// call is for a module that contains both. All ranks call it alike, and a program that replaces a parameter afterwards
// keeps the old one, or drops it, on all ranks alike, since the group gathers those that are alive.
// Errors (ValueError), after which the module is unchanged: no mesh, no such mesh dim, or none named where the mesh has
// several; a parameter on another mesh, or not replicated over the mesh dim, or with a StridedShard of that dim on
// a later one; dim < 0; a parameter that got another mixed precision from parallelize_module(); a module with
// parameters in a group that has others outside of it: call it for submodules first, and for modules that share a
// Tensor once, for one that contains them; a module whose parameters are all in one group already, unless it has plain
// buffers left.
void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});

// Frees the gathered values of the groups that `module` has parameters of, as after evaluation, which has no backward.
// All ranks call it alike; communicates nothing.
void reshard(torch::nn::Module& module);

}  // namespace dtensor
