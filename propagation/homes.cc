#include "propagation/homes.h"

#include <algorithm>
#include <optional>

namespace dtensor {
namespace {

// The shard of input i along mesh dim d that this operator or an earlier one gave up. Null: none. Parameters are
// excluded, since they are split for other reasons than rows are.
const Placement* given_up(const Problem& problem, const Strategy& choice, size_t i, int64_t d) {
  if (!problem.functional.inputs[i]) return nullptr;
  const Placement &given = problem.given(i, d), &taken = choice.inputs[i][d];
  if (const Placement* home = problem.call.home(i, d)) {
    return taken.is_partial() || (taken.is_shard() && taken != *home) ? home : nullptr;
  }
  return given.is_shard() && taken.is_replicate() && !problem.call.is_parameter(i) ? &given : nullptr;
}

// The shard of output o along mesh dim d if input i had placement `at` there. nullopt: none.
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
    if (!outputs[o]) continue;
    Placements home = outputs[o]->placements();
    for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
      if (!home[d].is_partial() && !home[d].is_shard()) continue;
      for (size_t i = 0; i < choice.inputs.size() && home[d] == outputs[o]->placements()[d]; ++i) {
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

std::vector<uint64_t> find_strayed(const Problem& problem, const OpRule& rule) {
  const OpCall& call = problem.functional;
  std::vector<uint64_t> strayed;
  const auto find = [&](int64_t d, const auto& strategies, const auto& along) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Placement* home = call.home(i, d);
      if (home == nullptr || !problem.given(i, d).is_shard()) continue;
      const auto keeps = [&](const auto& s) { return along(s.inputs[i]) == *home && along(s.outputs[0]).is_shard(); };
      if (std::none_of(strategies.begin(), strategies.end(), keeps)) continue;
      strayed.resize(call.inputs.size());
      strayed[i] |= uint64_t{1} << d;
    }
  };
  if (call.homes.empty() || problem.metas.tensors.empty()) return strayed;
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    if (rule.whole) {
      find(d, rule.whole(call), [d](const Placements& p) { return p[d]; });
    } else {
      find(d, rule.per_dim(call, d), [](const Placement& p) { return p; });
    }
  }
  return strayed;
}

}  // namespace dtensor
