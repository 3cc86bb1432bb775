#include "plan/redistribute_planner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "placement/parse_placements.h"
#include "plan/largest_part.h"
#include "plan/memo.h"
#include "plan/search/mesh_steps.h"
#include "plan/search/step_search.h"
#include "plan/transfer/schedule.h"
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

// ------------------------------------------------------------ the cached plans of a world

namespace {

using PlanPtr = std::shared_ptr<const RedistributePlan>;

// The inputs of a plan.
struct Key {
  uint64_t spec = 0;
  const void* mesh = nullptr;  // of the target. The plan holds it, so that its address is unique
  Placements to;
  int64_t max_bytes;
};
struct KeyView {
  uint64_t spec;
  const void* mesh;
  const Placements& to;
  int64_t max_bytes;
  explicit operator Key() const { return {spec, mesh, to, max_bytes}; }
};
struct KeyHash {
  using is_transparent = void;
  template <typename K>
  size_t operator()(const K& key) const {
    return absl::HashOf(key.spec, key.mesh, key.to, key.max_bytes);
  }
};
struct KeyEqual {
  using is_transparent = void;
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return a.spec == b.spec && a.mesh == b.mesh && a.to == b.to && a.max_bytes == b.max_bytes;
  }
};

// An entry keeps its spec alive. A tensor between two redistributions is often the only one of its layout, and is freed
// in every training step; its spec would be freed, too, and get another id next time, so that its plan would not be
// found.
struct PlanMemo : Memo<Key, PlanPtr, 2048, KeyHash, KeyEqual> {
  // `is_candidate`: the plan is only priced so far, and may never be used.
  void remember(const KeyView& key, const SpecPtr& from, PlanPtr plan, bool is_candidate) {
    if (is_candidate) return insert_old(Key(key), std::move(plan), {from});
    insert(Key(key), std::move(plan), {from});
  }
};

// Finds the plan, or makes it by `make`, which gets the normalised target and may return null. `is_candidate`: as in
// remember().
template <typename Make>
PlanPtr remembered(const SpecPtr& from, const DeviceMesh& mesh, const Placements& to, const Limits& limits,
                   bool is_candidate, const Make& make) {
  PlanMemo& memo = from->mesh().world().attachment<PlanMemo>();
  const KeyView asked{from->id(), mesh.identity(), to, limits.max_bytes};
  if (auto plan = memo.find(asked)) return *plan;
  auto target = normalize_placements(to, from->ndim());
  TORCH_CHECK_VALUE(target.ok(), "[redistribute] ", to_string(to), " does not fit ", from->to_string(), ": ",
                    std::string(target.status().message()));
  const bool is_normal = *target == to;
  const KeyView normal{from->id(), mesh.identity(), *target, limits.max_bytes};
  PlanPtr plan = is_normal ? nullptr : memo.find(normal).value_or(nullptr);
  if (!plan) {
    plan = make(*target);
    if (!plan) return plan;
    memo.remember(normal, from, plan, is_candidate);
  }
  if (!is_normal) memo.remember(asked, from, plan, is_candidate);
  return plan;
}

PlanOptions within(const Limits& limits) {
  PlanOptions options;
  options.limits = limits;
  return options;
}

}  // namespace

std::shared_ptr<const RedistributePlan> cached_plan(const SpecPtr& from, const DeviceMesh& mesh, const Placements& to,
                                                    const Limits& limits) {
  return remembered(from, mesh, to, limits, /*is_candidate=*/false, [&](const Placements& target) {
    return std::make_shared<const RedistributePlan>(
        mesh == from->mesh() ? plan_redistribution(mesh, from->meta(), from->placements(), target, within(limits))
                             : plan_transfer(from->meta(), Layout(from->mesh(), from->placements()),
                                             Layout(mesh, target), within(limits)));
  });
}

std::shared_ptr<const RedistributePlan> cached_plan(const SpecPtr& from, const Placements& to, const Limits& limits) {
  return cached_plan(from, from->mesh(), to, limits);
}

int64_t least_peak_bytes(const SpecPtr& from, const Placements& to) {
  const auto plan = cached_plan_within(from, to, {1});
  if (plan) return plan->steps.empty() ? 0 : plan->peak_bytes;  // for example of a tensor without elements
  const DeviceMesh& mesh = from->mesh();
  return least_mesh_peak(mesh, from->meta(), from->placements(), to, *cost_model(mesh.world()), 1);
}

std::shared_ptr<const RedistributePlan> cached_plan_within(const SpecPtr& from, const Placements& to,
                                                           const Limits& limits) {
  return remembered(from, from->mesh(), to, limits, /*is_candidate=*/true, [&](const Placements& target) -> PlanPtr {
    auto plan = plan_within(from->mesh(), from->meta(), from->placements(), target, within(limits));
    return plan ? std::make_shared<const RedistributePlan>(*std::move(plan)) : nullptr;
  });
}

}  // namespace dtensor
