// Between plain tensors and distributed ones, and from one layout to another. All differentiable.
//
// A DTensor is an at::Tensor; these functions take and give at::Tensor. A process may own several ranks of a mesh, so local
// parts come as a list, one per mesh.local_ranks().
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "dtensor/representation.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"
#include "propagation/redistribute_plan.h"

namespace dtensor {

// Spreads a plain tensor over the mesh: pieces and copies of the value that `source_rank` holds (the position along every mesh
// dim; torch: src_data_rank). nullopt: no communication, every rank takes its part of its own tensor. A leaf, requiring grad if
// `tensor` does. A meta tensor is allowed in an abstract world, and a leaf that is replicated on this mesh anywhere (what factories
// make inside a MeshScope). {} means Replicate on every dim.
// Errors: `tensor` has autograd history or is distributed with another layout; placements of another number than mesh dims.
at::Tensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements = {},
                             std::optional<int64_t> source_rank = 0);

struct FromLocalOptions {
  // Global shape. Unset: computed from the local sizes, which must then follow the chunk rule. Without run_check other
  // processes' parts are taken to be as large as this one's; so it is needed where they are uneven, and in an abstract world.
  std::optional<std::vector<int64_t>> shape;
  // Compare what all ranks pass, those of other processes by one all_gather of 4 KiB: placements and global shape are the same,
  // dtypes and numbers of dims are equal, every part has the shape that the chunk rule gives it, and replicas are equal bit for
  // bit (nothing is sent to make them so). Then the global shape is that of all parts, also where they are uneven. Every process
  // must ask for it, or none.
  bool run_check = false;
  // Layout in which the gradient comes back. Unset: the same, with Partial as Replicate.
  std::optional<Placements> grad_placements;
};

// Takes local parts as they are: one per mesh.local_ranks(). Plain in, distributed out. No copy, unless ranks of this process would
// share elements (one tensor for all of them) or a part is expanded: then that rank's part is.
// Errors: a number of locals other than that of the owned ranks, an empty list, locals of different dtype, ndim or device type,
// a distributed local, and with run_check whatever it finds; each names the ranks and the values. What run_check finds has the
// same text on all ranks, that which is wrong with one process's locals alone included.
at::Tensor from_local(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options = {});

// The local parts, one per owned rank. Of a view that is out of date (see docs/dispatch.md) this is a collective call: all ranks make
// it. The gradient of a Partial tensor comes back as Replicate unless said otherwise. Error in
// backward: the gradients of parts that are the same values differ, or only some of those parts were used.
std::vector<at::Tensor> to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// Another layout on the same mesh, as a new tensor (the same one if nothing changes). The gradient comes back in the layout of
// `tensor`, with Partial as Replicate. Error: `tensor` is plain.
//
// `async_op`: returns while the last collective is under way, if the world's backend can go on by itself (Gloo can; CUDA's streams
// always do); those before it are waited for. What first reads the result waits for it, does what is left to do on this rank, and
// throws what went wrong; asking for its shape or layout does not wait. The ranks must not make their other calls in different
// orders for that.
at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements, bool async_op = false);

// The same on another mesh of the same world, over the same, some other or all other ranks; a process that owns no rank of it
// gets a tensor without local parts. The gradient comes back to the mesh of `tensor`.
at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements);

// redistribute() of many tensors of one world, in as few collectives as their layouts allow (propagation/plan_many.h), in the
// backward, too. `placements`: one list per tensor, or one for all. Errors: as of redistribute(); another number of lists; tensors
// of several worlds.
std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors, const std::vector<Placements>& placements);

// The whole value as a plain tensor, on the device of the first owned rank. Error in an abstract world.
at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// The plan that redistribute() would run.
RedistributePlan plan_of(const at::Tensor& tensor, const Placements& placements);

// redistribute() under the name of another cause in reports. Internal.
at::Tensor redistribute_as(const at::Tensor& tensor, const Placements& placements, const CommCause& cause, bool async_op = false);

}  // namespace dtensor
