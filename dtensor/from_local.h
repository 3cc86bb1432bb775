// Local parts as a distributed tensor, and back. Differentiable.
//
// A process may own several ranks of a mesh, so local parts come as a list, one per mesh.local_ranks().
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
  // processes' parts are taken to be as large as this one's; so it is needed where they are uneven, and in an abstract
  // world.
  std::optional<std::vector<int64_t>> shape;
  // Compare what all ranks pass, those of other processes by one all_gather of 4 KiB: placements and global shape are
  // the same, dtypes and numbers of dims are equal, every part has the shape that the chunk rule gives it, and replicas
  // are equal bit for bit (nothing is sent to make them so). Then the global shape is that of all parts, also where
  // they are uneven. Every process must ask for it, or none.
  bool run_check = false;
  // Layout in which the gradient comes back. Unset: the same, with Partial as Replicate.
  std::optional<Placements> grad_placements;
  // Global strides. Unset: as the parts lie, if this process has all of them and they lie alike, as parts of a
  // transposed tensor do; else row-major. Every process must give the same.
  std::optional<std::vector<int64_t>> strides = std::nullopt;
};

// Takes local parts as they are: one per mesh.local_ranks(). Plain in, distributed out; of parts on the device "meta"
// the result is on mesh.meta(). No copy, unless ranks of this process would share elements (one tensor for all of them)
// or a part is expanded: then that rank's part is. Errors: a number of locals other than that of the owned ranks, an
// empty list, locals of different dtype, ndim or device type, a distributed local, and with run_check whatever it
// finds; each names the ranks and the values. What run_check finds has the same text on all ranks, that which is wrong
// with one process's locals alone included.
at::Tensor from_local(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options = {});

// The local parts, one per owned rank, to read: the very memory, so do not write to it (mutable_local_tensors() is for
// that). Never communicates, and changes nothing that is decided later: one rank may call it and others not. The
// gradient of a Partial tensor comes back as Replicate unless said otherwise.
// Error (c10::Error): the parts are not there (see fetch_parts()). Error in backward: the gradients of parts that are
// the same values differ, or only some of those parts were used.
std::vector<at::Tensor> to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// The local parts, one per owned rank, outside autograd, to write to. All ranks of the mesh call it alike: from now on
// nothing is remembered of the tensor, since the library does not see such writes, and operators move again what they
// need of it. Error (ValueError): a view whose parts had to be copies, which do not reach the tensor it is a view of.
std::vector<at::Tensor> mutable_local_tensors(const at::Tensor& tensor);

// Collective: all ranks of the mesh call it. Brings the parts of a tensor that a rank does not have yet, so that
// to_local() and DTensor::local() can read them: of a slice of a sharded dim or a padded tensor that no operator has
// read, of a view with copied parts after the tensor it is a view of was written to, of a gradient inside backward that
// is computed later. Does nothing where the parts are there.
void fetch_parts(const at::Tensor& tensor);

}  // namespace dtensor
