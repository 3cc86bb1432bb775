#include "propagation/homes.h"

#include <optional>

namespace dtensor {
namespace {

// The shard of input i along mesh dim d that is given up by what was chosen, by this operator or by one before. Null:
// there is none. Parameters are split for other reasons than rows are.
const Placement* given_up(const Problem& problem, const Strategy& choice, size_t i, int64_t d) {
  if (!problem.functional.inputs[i]) return nullptr;
  const Placement &given = problem.given(i, d), &taken = choice.inputs[i][d];
  if (given.is_shard()) return taken.is_replicate() && !problem.call.is_parameter(i) ? &given : nullptr;
  return taken.is_partial() ? problem.call.home(i, d) : nullptr;
}

// The shard of output o along mesh dim d had input i been `at` there. nullopt: none.
std::optional<Placement> kept(const Problem& problem, const Strategy& choice, const OpRule& rule, size_t i, int64_t d,
                              const Placement& at, size_t o) {
  Placements there = choice.inputs[i];
  there[d] = at;
  OpCall call = problem.functional;
  call.inputs[i] = call.inputs[i]->with_placements(there);
  if (rule.whole) {
    for (const Strategy& s : rule.whole(call)) {
      if (s.inputs[i] == there && s.outputs[o][d].is_shard()) return s.outputs[o][d];
    }
    return std::nullopt;
  }
  for (const DimStrategy& s : rule.per_dim(call, d)) {
    if (s.inputs[i] == at && s.outputs[o].is_shard()) return s.outputs[o];
  }
  return std::nullopt;
}

}  // namespace

std::vector<SpecPtr> find_homes(const Problem& problem, const Strategy& choice, const OpRule& rule,
                                const std::vector<SpecPtr>& outputs) {
  std::vector<SpecPtr> homes;
  for (size_t o = 0; o < outputs.size() && o < choice.outputs.size(); ++o) {
    if (!outputs[o] || !outputs[o]->has_partial()) continue;
    Placements home = outputs[o]->placements();
    for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
      for (size_t i = 0; i < choice.inputs.size() && home[d].is_partial(); ++i) {
        const Placement* at = given_up(problem, choice, i, d);
        if (at == nullptr) continue;
        if (const auto shard = kept(problem, choice, rule, i, d, *at, o)) home[d] = *shard;
      }
    }
    if (home == outputs[o]->placements()) continue;
    homes.resize(outputs.size());
    homes[o] = outputs[o]->with_placements(home);
  }
  return homes;
}

}  // namespace dtensor
