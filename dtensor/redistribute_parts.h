// Layouts that placements cannot express: boxes of any size, any number of them per rank (plan/layout.h), and
// redistribution from and to them. A tensor in such a layout is not a DTensor but a list of parts.
//
//   Layout uneven(world, {{0, {0, 0}, {1, 8}}, {2, {1, 0}, {7, 8}}});   // rank 0 row 0, rank 2 rows 1-7
//   RankPieces parts = to_parts(x, uneven);                             // x: a DTensor [8, 8]
//   at::Tensor y = from_parts(parts, {8, 8}, at::kFloat, uneven, mesh, {Shard(1)});
//
// Parts are one list per world.owned_ranks(): in a layout of boxes the rank's boxes in their order, on a mesh its local
// tensor. All three are collective over the ranks of both layouts, one plan (plan_transfer()), and differentiable:
// gradients come back in the original layout. Errors (c10::Error), before anything is sent: those of plan_transfer(),
// parts whose number, shape or dtype does not match the layout; with gradients over several processes also a rank that
// has parts and gets none, as it could not call backward. In backward (ValueError): boxes of `to` that overlap, since
// the sum of their gradients is not defined.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/rank_tensors.h"
#include "dtensor/redistribute_options.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"
#include "plan/layout.h"

namespace dtensor::internal {

struct RedistributePartsOptions {
  RedistributeOptions redistribute = {};        // async_op is an error
  std::string function = "redistribute_parts";  // called by the user, for reports
  // Some rank's parts require grad: set by all ranks alike, so that a rank without parts takes part in the backward,
  // too. Every rank that gets parts must then call backward.
  bool requires_grad = false;
};

// `sizes`, `dtype`: of the whole tensor. If nothing moves at all, a rank's parts are returned themselves.
RankPieces redistribute_parts(const RankPieces& parts, c10::IntArrayRef sizes, c10::ScalarType dtype,
                              const Layout& from, const Layout& to, const RedistributePartsOptions& options = {});

// Conversion between parts and a DTensor.
at::Tensor from_parts(const RankPieces& parts, c10::IntArrayRef sizes, c10::ScalarType dtype, const Layout& from,
                      const DeviceMesh& mesh, const Placements& placements,
                      const RedistributePartsOptions& options = {});
RankPieces to_parts(const at::Tensor& tensor, const Layout& to, const RedistributePartsOptions& options = {});

}  // namespace dtensor::internal
