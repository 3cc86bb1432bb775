#include "propagation/strategy_pricer.h"

#include <algorithm>

#include "placement/parse_placements.h"
#include "plan/mesh_steps.h"
#include "plan/redistribute_planner.h"

namespace dtensor {

std::vector<Pricer::Group> Pricer::all_inputs(const Problem& problem) {
  std::vector<Pricer::Group> groups;
  for (size_t i = 0; i < problem.functional.inputs.size(); ++i) {
    if (problem.call.inputs[i]) groups.push_back({i, 1});
  }
  return groups;
}

Pricer::Pricer(const Problem& problem) : Pricer(problem, all_inputs(problem)) {}

std::optional<Score> Pricer::price(const Strategy& s, Picoseconds limit, bool quick) {
  quick = quick && !problem_.limits.any();  // a route that is there may need too much
  ++priced_;
  for (size_t o = 0; o < s.outputs.size(); ++o) {
    if (o < problem_.metas.tensors.size() && !problem_.metas.tensors[o]) continue;
    if (!normalize_placements(s.outputs[o], std::numeric_limits<int32_t>::max()).ok()) return std::nullopt;
  }
  // First with lower bounds in place of what is not planned yet.
  Score score{made_partials(s), 0};
  changes_.clear();
  for (const Group& g : groups_) {
    const Spec& spec = *problem_.call.inputs[g.input];
    const Placements& to = s.inputs[g.input];
    if (spec.placements() == to) continue;
    Price& price = prices_.try_emplace({&spec, to}, Price{}).first->second;
    if (price.cost < 0) bound(spec, to, price);
    if (price.cost == kNever) return std::nullopt;
    if (quick && !price.planned && price.quick < 0) {
      price.quick = picoseconds(plain_seconds(spec.mesh(), spec.meta(), spec.placements(), to, *problem_.cost));
    }
    score.cost += (quick && !price.planned ? price.quick : price.cost) * g.count;
    score.changed += g.count;
    if (!quick) changes_.push_back(g);
  }
  for (const Group& g : changes_) {
    if (score.cost > limit) return std::nullopt;
    const SpecPtr& spec = problem_.call.inputs[g.input];
    Price& price = prices_.find(std::make_pair(spec.get(), s.inputs[g.input]))->second;
    if (price.planned) continue;
    score.cost -= price.cost * g.count;
    plan(spec, s.inputs[g.input], price);
    if (price.cost == kNever) return std::nullopt;
    score.cost += price.cost * g.count;
  }
  return score.cost > limit ? std::nullopt : std::optional(score);
}

void Pricer::bound(const Spec& spec, const Placements& to, Price& price) const {
  price.cost = kNever;
  if (!normalize_placements(to, spec.ndim()).ok()) return;
  const double least = least_seconds(spec.mesh(), spec.meta(), spec.placements(), to, *problem_.cost);
  price.cost = std::max<Picoseconds>(0, picoseconds(least) - 1);
}

void Pricer::plan(const SpecPtr& spec, const Placements& to, Price& price) {
  const auto plan = cached_plan_within(spec, to, problem_.limits);
  price.cost = plan ? picoseconds(plan->seconds) : kNever;
  price.planned = true;
  ++planned_;
}

// A Partial result is a reduction that somebody has to pay for. It is part of the price where an input moves for it:
//  * a sharded one to another dim (the k-split of a matmul);
//  * a sharded one is gathered so that another, which is Partial, may stay so (a column-parallel weight, for the sake of
//    what a row-parallel layer left).
Picoseconds Pricer::made_partials(const Strategy& s) const {
  const DeviceMesh& mesh = problem_.call.mesh;
  Picoseconds total = 0;
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    bool moved = false, kept = false, gathered = false;
    for (const Group& g : groups_) {
      const Placement &given = problem_.given(g.input, d), &taken = s.inputs[g.input][d];
      moved = moved || (given.is_sharded() && taken.is_sharded() && given != taken);
      kept = kept || (given.is_partial() && taken.is_partial());
      gathered = gathered || (given.is_sharded() && taken.is_replicate());
    }
    const bool puts_off = kept && gathered;
    for (size_t o = 0; (moved || puts_off) && o < s.outputs.size() && o < problem_.metas.tensors.size(); ++o) {
      if (!problem_.metas.tensors[o] || !s.outputs[o][d].is_partial()) continue;
      int64_t bytes = static_cast<int64_t>(c10::elementSize(problem_.metas.tensors[o]->dtype));
      const Shape origin(s.outputs[o].size(), 0);
      for (int64_t n : local_shape(problem_.metas.tensors[o]->sizes, mesh.shape(), s.outputs[o], origin)) bytes *= n;
      const bool crosses = (mesh.dims_between_nodes(problem_.cost->ranks_per_node) >> d & 1) != 0;
      total += picoseconds(problem_.cost->collective(Collective::kAllReduce, mesh.size(d), crosses,
                                                     2 * bytes * (mesh.size(d) - 1) / mesh.size(d)));
    }
  }
  return total;
}

}  // namespace dtensor
