#include "propagation/preferred_layouts.h"

#include <algorithm>
#include <optional>

namespace dtensor {
namespace {

// The shard of input i along mesh dim d that this operator or an earlier one gave up. Null: none. Parameters are
// excluded, since they are split for other reasons than rows are.
const Placement* given_up(const Problem& problem, const Strategy& choice, size_t i, int64_t d) {
  if (!problem.functional.inputs[i]) return nullptr;
  const Placement &given = problem.given(i, d), &taken = choice.inputs[i][d];
  if (const Placement* preferred = problem.call.preferred_placement(i, d)) {
    return taken.is_partial() || (taken.is_shard() && taken != *preferred) ? preferred : nullptr;
  }
  return given.is_shard() && taken.is_replicate() && !problem.call.context.is_parameter(i) ? &given : nullptr;
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

std::vector<SpecPtr> find_preferred_layouts(const Problem& problem, const Strategy& choice, const OpRule& rule,
                                            const std::vector<SpecPtr>& outputs) {
  std::vector<SpecPtr> result;
  for (size_t o = 0; o < outputs.size() && o < choice.outputs.size(); ++o) {
    if (!outputs[o]) continue;
    Placements preferred = outputs[o]->placements();
    for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
      if (!preferred[d].is_partial() && !preferred[d].is_shard()) continue;
      for (size_t i = 0; i < choice.inputs.size() && preferred[d] == outputs[o]->placements()[d]; ++i) {
        const Placement* at = given_up(problem, choice, i, d);
        if (at == nullptr) continue;
        if (const auto shard = kept(problem, choice, rule, i, d, *at, o)) preferred[d] = *shard;
      }
    }
    if (preferred == outputs[o]->placements()) continue;
    result.resize(outputs.size());
    result[o] = outputs[o]->with_placements(preferred);
  }
  return result;
}

std::vector<uint64_t> find_displaced_inputs(const Problem& problem, const OpRule& rule) {
  const OpCall& call = problem.functional;
  std::vector<uint64_t> displaced;
  const auto find = [&](int64_t d, const auto& strategies, const auto& along) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Placement* preferred = call.preferred_placement(i, d);
      if (preferred == nullptr || !problem.given(i, d).is_shard()) continue;
      const auto keeps = [&](const auto& s) {
        return along(s.inputs[i]) == *preferred && along(s.outputs[0]).is_shard();
      };
      if (std::none_of(strategies.begin(), strategies.end(), keeps)) continue;
      displaced.resize(call.inputs.size());
      displaced[i] |= uint64_t{1} << d;
    }
  };
  if (call.context.preferred_layouts.empty() || problem.metas.tensors.empty()) return displaced;
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    if (rule.whole) {
      find(d, rule.whole(call), [d](const Placements& p) { return p[d]; });
    } else {
      find(d, rule.per_dim(call, d), [](const Placement& p) { return p; });
    }
  }
  return displaced;
}

}  // namespace dtensor
