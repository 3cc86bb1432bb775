// Conversion between local tensors and distributed tensors. Differentiable.
//
// A process may own several ranks of a mesh, so local tensors come as a list, one per mesh.local_ranks().
//
//   std::vector<at::Tensor> rows;
//   for (size_t i = 0; i < mesh.local_ranks().size(); ++i) rows.push_back(at::rand({2, 8}));
//   at::Tensor x = from_local(rows, mesh, {Shard(0)});  // [8, 8] on a mesh of 4 ranks
//   at::Tensor mine = to_local(x)[0];                   // the first of rows
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor {

struct FromLocalOptions {
  // Global shape. Unset: computed from the local sizes, which must then follow the chunk rule. Without run_check other
  // processes' parts are assumed to be as large as this one's; so set it where they are uneven, and in an abstract
  // world.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
  // Compare the arguments of all ranks, those of other processes by one all_gather of 4 KiB: placements and global
  // shape are the same, dtypes and numbers of dims are equal, every part has the shape that the chunk rule gives it,
  // and replicas are equal bit for bit (nothing is sent to make them so). Then the global shape is that of all parts,
  // also where they are uneven. All processes must set it, or none.
  bool run_check = false;
  // Layout in which the gradient comes back. Unset: the same, with Partial as Replicate.
  std::optional<Placements> grad_placements = std::nullopt;
  // Global strides. Unset: as in the local tensors, if this process has all of them and they agree, as parts of a
  // transposed tensor do; else row-major. Every process must pass the same.
  std::optional<std::vector<int64_t>> strides = std::nullopt;
};

// Makes a distributed tensor from plain local ones: one per mesh.local_ranks(); for parts on the device "meta" the
// result is on mesh.meta(). A part is copied only if ranks of this process would share its elements (one tensor for all
// of them) or if it is expanded. Errors: a number of locals other than that of the owned ranks, an empty list, locals
// of different dtype, ndim or device type, a distributed local, and the faults that run_check finds; each names the
// ranks and the values. Errors of run_check have the same text on all ranks, also if only one process's locals are
// wrong.
at::Tensor from_local(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options = {});

// The local tensors, one per owned rank, read-only: they share memory with `tensor`, so do not write to them (use
// mutable_local_tensors()). Never communicates, and does not affect later decisions; one rank may call it and others
// not. The gradient of a Partial tensor comes back as Replicate by default.
// Error (c10::Error): the parts are not available (see fetch_parts()). Error in backward: the gradients of replicas
// differ, or only some of the replicas were used.
std::vector<at::Tensor> to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// The local tensors, one per owned rank, outside autograd, to write to. All ranks of the mesh call it alike: from now
// on nothing about the tensor is cached, since the library does not see such writes, and operators redistribute it each
// time. Error (ValueError): a copied view, since writes would not reach its base. Other processes get no error if only
// this one had to copy the view, as for a base whose parts, given to from_local(), have other strides here than there.
std::vector<at::Tensor> mutable_local_tensors(const at::Tensor& tensor);

// Collective: all ranks of the mesh call it. Fetches local tensors that are not available yet, so that to_local() and
// DTensor::local() can read them: of a slice of a sharded dim or a padded tensor that no operator has read, of a copied
// view after its base was written to, of a deferred gradient inside backward. Does nothing if they are available.
void fetch_parts(const at::Tensor& tensor);

}  // namespace dtensor
