// Finds the cheapest steps between two layouts. Pure: no process, no tensor, the same answer on every rank.
//
//   plan_redistribution(mesh, {{8, 8}, {8, 1}, at::kFloat}, {Shard(0)}, {Shard(1)});  // one all_to_all
//
// A shortest path (Dijkstra, by estimated seconds; among equal ones the first found, in a fixed order) over layouts in
// which every mesh dim is as in `from`, replicated, as in `to`, or, if it was Partial, sharded on any dim. Edges, over
// one or several mesh dims:
//
//   slice           R -> sharded, where no later mesh dim that stays cuts the same tensor dim
//   all_gather      sharded -> R, under the same condition
//   reduce_scatter  Partial of one kind -> sharded, under the same condition
//   all_reduce      Partial of one kind -> R
//   fill            R -> Partial, last
//   all_to_all      the overlay of the two layouts: always possible if not Partial. Called permute where it only
//                   exchanges whole parts, and all_gather where every rank gets all that its group has
//
// Free changes are not steps: a change on a mesh dim of size 1, and MaskPartial -> Partial of the same kind, whose
// locals are valid addends already. A plan with only such changes has no steps. Tensors without elements are never
// sent.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plan/cost_model.h"
#include "plan/redistribute_plan.h"

namespace dtensor {

struct PlanOptions {
  std::shared_ptr<const CostModel> cost;  // null: cost_model(world)
  Limits limits;
  // The cheapest route on any mesh, however long the search takes. Otherwise, if more than three mesh dims change, a
  // fixed number of steps is priced, those nearest to the target first, and the best route among them is taken.
  bool complete = false;
};

// Plan from `from` to `to` for a tensor of global `meta` on `mesh`. Both lists normalised, of mesh.ndim() entries.
// Every pair is possible. The result is a function of the arguments alone.
// Errors (c10::Error): wrong number of entries; no route stays within the limits (the text names the smallest
// sufficient peak_bytes).
RedistributePlan plan_redistribution(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from,
                                     const Placements& to, const PlanOptions& options = {});
// nullopt if no route stays within the limits.
std::optional<RedistributePlan> plan_within(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from,
                                            const Placements& to, const PlanOptions& options);

// Between any two layouts of one world: two meshes over the same, some common or no common ranks, or boxes. Partials
// are reduced on the mesh of `from` first. A rank receives only what it does not hold; several ranks that hold the same
// share the sending.
// Errors: as above; different worlds; boxes outside the tensor, or with a wrong number of dims; boxes of `from` that
// overlap, or that together omit a part that `to` needs.
RedistributePlan plan_transfer(const TensorMeta& meta, const Layout& from, const Layout& to,
                               const PlanOptions& options = {});

// The same, cached per world (bounded, thread-safe). Normalises `to`.
std::shared_ptr<const RedistributePlan> cached_plan(const SpecPtr& from, const Placements& to,
                                                    const Limits& limits = {});
std::shared_ptr<const RedistributePlan> cached_plan(const SpecPtr& from, const DeviceMesh& mesh, const Placements& to,
                                                    const Limits& limits = {});
// On one mesh; null if no route stays within the limits.
std::shared_ptr<const RedistributePlan> cached_plan_within(const SpecPtr& from, const Placements& to,
                                                           const Limits& limits);

// The smallest limit within which there is a plan.
int64_t least_peak_bytes(const SpecPtr& from, const Placements& to);

// Complete routes to the same target, the cheapest first, one per last step, including the detour through Replicate.
// Limits are ignored. Empty if more than 15 mesh dims change. For explain() and tests.
std::vector<Route> routes(const RedistributePlan& plan);

}  // namespace dtensor
