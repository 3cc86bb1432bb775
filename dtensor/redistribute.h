// Conversion between plain and distributed tensors, and from one layout to another. Differentiable, except
// relayout_() and plan_of().
//
// A DTensor is an at::Tensor; these functions take and return at::Tensor. A process may own several ranks of a mesh, so
// local parts come as a list, one per mesh.local_ranks().
//
//   DeviceMesh mesh(World::local(4), {4}, {"tp"});
//   at::Tensor x = distribute_tensor(at::rand({8, 8}), mesh, {Shard(0)});  // two rows a rank
//   at::Tensor y = redistribute(x, {Shard(1)});                            // two columns a rank: one all_to_all
//   at::Tensor whole = full_tensor(y);                                     // plain again
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "dtensor/dispatch_key.h"
#include "dtensor/redistribute_options.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor {

struct RedistributePlan;  // plan/redistribute_plan.h

// Distributes a plain tensor over the mesh: pieces and copies of the value of `source_rank` (the position along every
// mesh dim; torch: src_data_rank). nullopt: no communication, every rank takes its part of its own tensor. A leaf,
// requiring grad if `tensor` does. Channels-last strides are kept (each rank uses its own tensor's strides, so they
// must agree); others become row-major. The result for a meta tensor is on mesh.meta(). Also accepts a leaf that is
// replicated on this mesh (from a factory inside a MeshScope). {} means Replicate on every dim. Errors: `tensor` has
// autograd history or is distributed with another layout; not one placement per mesh dim.
at::Tensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements = {},
                             std::optional<int64_t> source_rank = 0);

// Another layout on the same mesh, as a new tensor (the same one if nothing changes). The gradient comes back in the
// layout of `tensor`, with Partial as Replicate, under the same `max_bytes`.
// Errors (ValueError, before anything is sent): `tensor` is plain; placements that do not fit it; no route stays within
// options.max_bytes (the text names the smallest limit that suffices).
//
// options.async_op: returns while the last collective is under way, if the world's backend runs asynchronously (that
// of processes can; on GPUs their streams wait, never the host); earlier collectives are waited for. The first read of
// the result waits for it, runs the remaining local steps, and throws its errors; shape and layout are available
// without waiting. All ranks must still make their other calls in the same order.
at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements,
                        const RedistributeOptions& options = {});

// The same on another mesh of the same world, over the same, some other or all other ranks; a process that owns no rank
// of it gets a tensor without local parts. The gradient comes back to the mesh of `tensor`.
at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                        const RedistributeOptions& options = {});

// redistribute() of many tensors of one world, in as few collectives as their layouts allow (plan/plan_many.h), also in
// backward. `placements`: one list per tensor, or one for all. options.max_bytes bounds the total memory of tensors
// that are sent together, which may take more collectives.
// Errors: as of redistribute(); a wrong number of lists; tensors of several worlds; options.async_op.
std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements,
                                          const RedistributeOptions& options = {});

// Changes the layout of `tensor` in place, on its mesh: a cache that was made in the model, before it is written.
//
//   at::Tensor cache = torch::zeros({batch, heads, length, width});  // in a MeshScope: replicated
//   relayout_(cache, {Shard(1)});                                    // every rank keeps its heads: nothing is sent
//
// The tensor stays the same one, with its name and ghost width; a leaf still requires grad, and its gradient moves,
// too. Later writes keep the layout; if the tensor has it already, only that changes. All ranks call it alike; it
// communicates like redistribute(). Local tensors that the program holds keep the old contents. Errors: as of
// redistribute(); (ValueError) the tensor has autograd history, or is a view, or has views or other handles, as these
// would keep the old layout; a Partial layout for a leaf that requires grad; options.async_op.
void relayout_(const at::Tensor& tensor, const Placements& placements, const RedistributeOptions& options = {});

// The whole value as a plain tensor, on the device of the first owned rank. Error in an abstract world, except that a
// tensor on the device "meta" gives a meta tensor.
at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// The plan that redistribute() would run now, under the RedistributeMemoryLimit in effect. Include
// plan/redistribute_plan.h to use it.
RedistributePlan plan_of(const at::Tensor& tensor, const Placements& placements,
                         const RedistributeOptions& options = {});

}  // namespace dtensor
