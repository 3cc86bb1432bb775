#include "plan/redistribute_planner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "plan/largest_part.h"
#include "plan/search/mesh_steps.h"
#include "plan/search/step_search.h"
#include "plan/transfer/transfer.h"

namespace dtensor {
using namespace internal;

std::optional<RedistributePlan> plan_within(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from,
                                            const Placements& to, const PlanOptions& options) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(from.size()) == mesh.ndim() && from.size() == to.size(),
                    "[redistribute] from ", to_string(from), " to ", to_string(to), " on ", mesh.to_string(),
                    ": give one placement per mesh dim");
  RedistributePlan plan;
  plan.tensor = meta;
  plan.from = Layout(mesh.idle(), from);
  plan.to = Layout(mesh.idle(), to);
  plan.cost = options.cost ? options.cost : cost_model(mesh.world());
  plan.limits = options.limits;
  plan.schedule = make_schedule_slot();
  if (!find_mesh_steps(mesh, meta, from, to, *plan.cost, plan.limits, plan.steps, options.complete)) {
    return std::nullopt;
  }
  if (plan.steps.empty()) plan.peak_bytes = largest_part_bytes(meta, plan.to);
  for (const RedistributeStep& step : plan.steps) {
    plan.bytes += step.bytes;
    plan.seconds += step.seconds;
    plan.peak_bytes = std::max(plan.peak_bytes, step.peak_bytes);
  }
  return plan;
}

RedistributePlan plan_redistribution(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from,
                                     const Placements& to, const PlanOptions& options) {
  auto plan = plan_within(mesh, meta, from, to, options);
  if (plan) return *std::move(plan);
  const auto cost = options.cost ? options.cost : cost_model(mesh.world());
  TORCH_CHECK_VALUE(false, "[redistribute] ", to_string(from), " -> ", to_string(to), " of ", to_string(meta), " on ",
                    mesh.to_string(), ": max_bytes is ", options.limits.max_bytes, ", but every route needs at least ",
                    least_mesh_peak(mesh, meta, from, to, *cost, options.limits.max_bytes),
                    " bytes per rank; raise max_bytes");
}

std::vector<Route> routes(const RedistributePlan& plan) {
  if (plan.from == plan.to) return {};
  if (plan.from.is_boxes() || plan.to.is_boxes() || plan.from.mesh() != plan.to.mesh()) return transfer_routes(plan);
  const DeviceMesh& mesh = plan.from.mesh();
  const Placements start = relabelled(mesh, plan.from.placements(), plan.to.placements());
  if (start == plan.to.placements() || plan.tensor.numel() == 0) return {};
  int64_t changing = 0;
  for (size_t m = 0; m < start.size(); ++m) changing += start[m] != plan.to.placements()[m] ? 1 : 0;
  if (changing > kMaxChanging) return {};
  const Limits none;  // routes beyond the limit are shown, too. Helpers would give variants of every route.
  std::vector<Route> list = StepSearch(mesh, plan.tensor, start, plan.to.placements(), *plan.cost, none,
                                       /*helpers=*/false, changing <= static_cast<int64_t>(kMaxComplete))
                                .all_arrivals();
  const auto is_plan = [&](const Route& route) {
    const auto same = [](const RedistributeStep& a, const RedistributeStep& b) {
      return a.kind == b.kind && a.after == b.after;
    };
    return std::equal(route.steps.begin(), route.steps.end(), plan.steps.begin(), plan.steps.end(), same);
  };
  list.erase(std::remove_if(list.begin(), list.end(), is_plan), list.end());
  list.insert(list.begin(), {plan.steps, plan.bytes, plan.peak_bytes, plan.seconds});
  return list;
}

}  // namespace dtensor
