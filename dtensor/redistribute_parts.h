// Layouts that no placements say: boxes of any size, any number of them per rank (plan/layout.h), and redistribution
// from and to them. A tensor in such a layout is no DTensor but a list of parts.
//
//   Layout uneven(world, {{0, {0, 0}, {1, 8}}, {2, {1, 0}, {7, 8}}});   // rank 0 row 0, rank 2 rows 1-7
//   RankPieces parts = to_parts(x, uneven);                             // x: a DTensor [8, 8]
//   at::Tensor y = from_parts(parts, {8, 8}, at::kFloat, uneven, mesh, {Shard(1)});
//
// Parts are one list per world.owned_ranks(): in a layout of boxes the rank's boxes in their order, in one on a mesh
// its part. All three are collective over the ranks of both layouts, one plan (plan_transfer()), and differentiable:
// gradients come back to where the values were. Errors (c10::Error), before anything is sent: those of plan_transfer(),
// parts of another number, shape or dtype than the layout says; with gradients over several processes also a rank that
// has parts and gets none, as it could not call backward. In backward (ValueError): boxes of `to` that overlap,
// since it is not said how their gradients add up.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/rank_tensors.h"
#include "dtensor/redistribute_options.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"
#include "plan/layout.h"

namespace dtensor {

struct RedistributePartsOptions {
  RedistributeOptions redistribute = {};        // async_op is an error
  std::string function = "redistribute_parts";  // that the user called, for reports
  // Some rank's parts require grad: said by all ranks alike, so that one without parts takes part in the backward, too.
  // Every rank that gets parts must then call it.
  bool requires_grad = false;
};

// `sizes`, `dtype`: of the whole tensor. What a rank has already as it shall be is given back itself, if nothing moves
// at all.
RankPieces redistribute_parts(const RankPieces& parts, c10::IntArrayRef sizes, c10::ScalarType dtype,
                              const Layout& from, const Layout& to, const RedistributePartsOptions& options = {});

// A DTensor of parts, and the other way.
at::Tensor from_parts(const RankPieces& parts, c10::IntArrayRef sizes, c10::ScalarType dtype, const Layout& from,
                      const DeviceMesh& mesh, const Placements& placements,
                      const RedistributePartsOptions& options = {});
RankPieces to_parts(const at::Tensor& tensor, const Layout& to, const RedistributePartsOptions& options = {});

}  // namespace dtensor
