// The cached plans of a world.
#include <c10/util/Exception.h>

#include <utility>

#include "absl/hash/hash.h"
#include "placement/parse_placements.h"
#include "plan/memo.h"
#include "plan/redistribute_planner.h"
#include "plan/search/mesh_steps.h"

namespace dtensor {
using namespace internal;

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
