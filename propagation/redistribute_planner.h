// Finds the cheapest steps between two layouts. Pure: no process, no tensor, the same answer on every rank.
//
//   plan_redistribution(mesh, {{8, 8}, {8, 1}, at::kFloat}, {Shard(0)}, {Shard(1)});  // one all_to_all
//
// A shortest path (Dijkstra, by estimated seconds; ties: fewer collectives, fewer steps, then by step kind and mesh dims)
// over layouts in which every mesh dim is as in `from`, replicated, or as in `to`. Edges, over one or several mesh dims:
//
//   slice           R -> sharded, where no later mesh dim that stays cuts the same tensor dim
//   all_gather      sharded -> R, under the same condition
//   reduce_scatter  Partial of one kind -> sharded, under the same condition
//   all_reduce      Partial of one kind -> R
//   fill            R -> Partial, last
//   all_to_all      the overlay of the two layouts: always possible for what is not Partial
//
// What costs nothing is no step: a change on a mesh dim of size 1, and MaskPartial -> Partial of the same kind, whose locals
// are valid addends already. A plan whose changes are all such has no steps. Tensors without elements are never sent.
#pragma once

#include <memory>

#include "propagation/cost_model.h"
#include "propagation/redistribute_plan.h"

namespace dtensor {

// Plan from `from` to `to` for a tensor of global `meta` on `mesh`. Both lists normalised, of mesh.ndim() entries.
// Every pair is possible. What comes out is a function of the arguments alone. Error (c10::Error): another number of entries.
RedistributePlan plan_redistribution(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from,
                                     const Placements& to, const CostModel& cost = {});

// The same, remembered per world (bounded, thread-safe). Normalises `to`.
std::shared_ptr<const RedistributePlan> cached_plan(const SpecPtr& from, const Placements& to);

}  // namespace dtensor
