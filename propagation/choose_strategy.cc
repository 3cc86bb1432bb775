#include "propagation/choose_strategy.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "propagation/decision.h"
#include "propagation/partial_dtypes.h"

namespace dtensor::internal {
namespace {

bool has_its_dim(const Placement& p, int64_t ndim) { return !p.is_sharded() || (p.dim() >= 0 && p.dim() < ndim); }

void check_shape(const Problem& problem, size_t num_inputs, size_t num_outputs) {
  const OpCall& call = problem.functional;
  TORCH_CHECK(num_inputs == call.inputs.size(), "rule of ", call.name(), ": a strategy has ", num_inputs,
              " inputs, the call ", call.inputs.size());
  const bool returns_nothing = call.schema().returns().empty();
  TORCH_CHECK(num_outputs == problem.fixed_outputs.size() || (returns_nothing && num_outputs == 0), "rule of ",
              call.name(), ": a strategy has ", num_outputs, " outputs, the operator ", problem.fixed_outputs.size());
}

void check_output(const Problem& problem, size_t o, const Placement& p) {
  if (o >= problem.metas.tensors.size() || !problem.metas.tensors[o]) return;
  const int64_t ndim = static_cast<int64_t>(problem.metas.tensors[o]->sizes.size());
  TORCH_CHECK(has_its_dim(p, ndim), "rule of ", problem.call.name(), ": ", to_string(p), " for output ", o,
              ", which has ", ndim, " dims");
}

// Checks for hand-written strategies, which factor rules make themselves: no Partial in a dtype that does not support
// it.
template <typename Out, typename In>
bool dtypes_allow(const Problem& problem, size_t num_outputs, const Out& out, const In& in) {
  for (size_t o = 0; o < num_outputs && o < problem.metas.tensors.size(); ++o) {
    if (!problem.metas.tensors[o] || !out(o).is_partial()) continue;
    bool any = false;
    for (size_t i = 0; i < problem.functional.inputs.size(); ++i) {
      const SpecPtr& spec = problem.functional.inputs[i];
      if (!spec || !in(i).is_partial()) continue;
      any = true;
      const auto from = spec->dtype(), to = problem.metas.tensors[o]->dtype;
      const auto can = [&](PartialSemantics maths) { return passes(maths, in(i), from, out(o), to); };
      if (!can(PartialSemantics::kCopy) && !can(PartialSemantics::kRing) && !can(PartialSemantics::kMonotone))
        return false;
    }
    if (!any && !can_leave(out(o), problem.metas.tensors[o]->dtype)) return false;
  }
  return true;
}

// Whether input i may be redistributed to `wanted` along mesh dim d.
bool input_allowed(const Problem& problem, size_t i, int64_t d, const Placement& wanted) {
  const Spec& spec = *problem.call.inputs[i];
  const Placement& given = problem.given(i, d);
  if (wanted == given) return true;
  if (!has_its_dim(wanted, spec.ndim()) || wanted.is_mask_partial()) return false;
  if (!wanted.is_partial()) return true;
  if (wanted.reduce_op() == ReduceOp::kSum) return spec.dtype() != c10::ScalarType::Bool;
  // Making a Partial with the neutral elements of other ranks is not exact for every value; only done for another
  // input's sake.
  if (wanted.reduce_op() == ReduceOp::kAvg && !c10::isFloatingType(spec.dtype()) && !c10::isComplexType(spec.dtype())) {
    return false;
  }
  if (wanted.reduce_op() == ReduceOp::kNorm2 && !c10::isFloatingType(spec.dtype())) return false;
  for (size_t other = 0; other < problem.functional.inputs.size(); ++other) {
    if (other != i && problem.functional.inputs[other] && problem.given(other, d) == wanted) return true;
  }
  return false;
}

// Whether written tensors keep their layout along mesh dim d. One with a mutable layout is written in its new one.
// `out(o)`, `in(i)`: the strategy's placements there.
template <typename Out, typename In>
bool keeps_written(const Problem& problem, int64_t d, size_t num_outputs, const Out& out, const In& in) {
  for (size_t o = 0; o < num_outputs; ++o) {
    const int i = problem.fixed_outputs[o];
    if (i < 0 || !problem.call.inputs[i]) continue;
    if (out(o) != (problem.call.context.is_mutable(i) ? in(i) : problem.given(i, d))) return false;
  }
  for (size_t i = 0; i < problem.fixed_inputs.size(); ++i) {
    if (problem.fixed_inputs[i] && in(i) != problem.given(i, d)) return false;
  }
  return true;
}

// "S(0) or R": the placements that the written input i may have along mesh dim d.
std::string accepted(const Problem& problem, size_t input, int64_t d, const std::vector<DimStrategy>& options) {
  std::vector<std::string> texts;
  for (const DimStrategy& option : options) {
    std::optional<Placement> wanted;
    bool one = true;
    auto ask = [&](const Placement& p) {
      one = one && (!wanted || *wanted == p);
      wanted = p;
    };
    for (size_t o = 0; o < option.outputs.size(); ++o) {
      if (problem.fixed_outputs[o] == static_cast<int>(input)) ask(option.outputs[o]);
    }
    if (input < option.inputs.size()) ask(option.inputs[input]);
    if (!one || !wanted || !has_its_dim(*wanted, problem.call.inputs[input]->ndim())) continue;
    // A Partial only if the input had it.
    if (wanted->is_partial() && problem.given(input, d) != *wanted) continue;
    std::string text = to_string(*wanted);
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(std::move(text));
  }
  return texts.empty() ? "another layout" : absl::StrJoin(texts, " or ");
}

[[noreturn]] void throw_none(const Problem& problem, int64_t d, const std::vector<DimStrategy>& options) {
  const OpCall& call = problem.call;
  const std::vector<bool> written = call.written();
  for (size_t i = 0; i < written.size(); ++i) {
    if (!written[i] || !call.inputs[i]) continue;
    std::string needs = d < 0 ? "another layout" : accepted(problem, i, d, options);
    if (d >= 0 && problem.mesh_ndim() > 1) absl::StrAppend(&needs, " on mesh dim '", call.mesh.names()[d], "'");
    throw WrittenLayoutError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        absl::StrCat(call.name(), ": in-place operations that require placement changes are not supported: argument '",
                     call.input_name(static_cast<int>(i)), "' is laid out as ", to_string(call.inputs[i]->placements()),
                     ", the operator needs ", needs, "; redistribute it first. Call: ", call.to_string()));
  }
  TORCH_CHECK(false, call.name(), ": none of its sharding strategies fits ", call.to_string());
}

// Along a mesh dim on which no input is sharded, the engine does not begin to shard by itself. A reduce-scatter is
// cheaper than an all-reduce, and slicing may make a redistribution along another dim cheaper, but later operators pay
// for that: they get an unexpected layout and gather weights for it.
void keep_unsharded(const Problem& problem, int64_t d, std::vector<DimStrategy>& options) {
  const size_t num_inputs = problem.functional.inputs.size();
  const auto present = [&](size_t i) { return problem.functional.inputs[i] != nullptr; };
  bool replicated = true;
  for (size_t i = 0; i < num_inputs; ++i) {
    if (!present(i)) continue;
    if (problem.given(i, d).is_sharded()) return;
    replicated = replicated && problem.given(i, d).is_replicate();
  }
  // It does not make Partials of replicated inputs, either. A Partial that is reduced before a matrix product may
  // become shards: the price decides whether the work saved is worth the communication. So may the rows of a constant:
  // the initial state of a recurrence is zeros on all ranks, and its later states are split. With fewer rows than ranks
  // some ranks would have nothing to do.
  const auto may_shard = [&](size_t i, int64_t dim) {
    if (!problem.flops || (replicated && !problem.call.context.is_factory_input(i))) return false;
    return problem.functional.inputs[i]->sizes().at(dim) >= problem.call.mesh.size(d);
  };
  const auto begins = [&](const DimStrategy& s) {
    for (size_t i = 0; i < num_inputs; ++i) {
      if (present(i) && problem.returns_to_preferred(i, d, s.inputs[i])) return false;
    }
    for (size_t i = 0; i < num_inputs; ++i) {
      if (!present(i)) continue;
      if (s.inputs[i].is_sharded() && !may_shard(i, s.inputs[i].dim())) return true;
      if (s.inputs[i].is_partial() && replicated) return true;
    }
    return false;
  };
  if (std::all_of(options.begin(), options.end(), begins)) return;
  options.erase(std::remove_if(options.begin(), options.end(), begins), options.end());
}

// If no strategy stays within the limit, the best without one: the error of its plan names a sufficient limit.
Problem unlimited(Problem problem) {
  problem.limits = {};
  return problem;
}

// Whether the call may take the strategy along mesh dim d.
bool is_allowed(const Problem& problem, int64_t d, const DimStrategy& s) {
  check_shape(problem, s.inputs.size(), s.outputs.size());
  const auto out = [&](size_t o) -> const Placement& { return s.outputs[o]; };
  const auto in = [&](size_t i) -> const Placement& { return s.inputs[i]; };
  if (!keeps_written(problem, d, s.outputs.size(), out, in)) return false;
  if (!dtypes_allow(problem, s.outputs.size(), out, in)) return false;
  for (size_t i = 0; i < s.inputs.size(); ++i) {
    if (problem.call.inputs[i] && !input_allowed(problem, i, d, s.inputs[i])) return false;
  }
  for (size_t o = 0; o < s.outputs.size(); ++o) check_output(problem, o, s.outputs[o]);
  return true;
}

// Per mesh dim, the strategies of the rule that the call may take.
std::vector<std::vector<DimStrategy>> fitting_options(const Problem& problem, const OpRule& rule) {
  std::vector<std::vector<DimStrategy>> options(problem.mesh_ndim());
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    options[d] = rule.per_dim(problem.functional, d);
    const auto fits = [&](const DimStrategy& s) { return is_allowed(problem, d, s); };
    const auto first = std::find_if(options[d].begin(), options[d].end(), fits);
    if (first == options[d].end()) throw_none(problem, d, options[d]);
    options[d].erase(options[d].begin(), first);
    options[d].erase(std::remove_if(options[d].begin() + 1, options[d].end(), std::not_fn(fits)), options[d].end());
    keep_unsharded(problem, d, options[d]);
  }
  return options;
}

Strategy choose_per_dim(const Problem& problem, const OpRule& rule, SearchEffort& effort) {
  std::vector<std::vector<DimStrategy>> options = fitting_options(problem, rule);
  const bool is_limited = problem.limits.any();
  auto best = best_combination(problem, is_limited ? options : std::move(options), effort);
  if (!best && is_limited) best = best_combination(unlimited(problem), std::move(options), effort);
  if (!best) throw_none(problem, -1, {});
  return *std::move(best);
}

// Whether a whole strategy keeps the layout of written inputs, and requires only possible placements of the others.
bool is_allowed(const Problem& problem, const Strategy& s) {
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    const auto out = [&](size_t o) -> const Placement& { return s.outputs[o][d]; };
    const auto in = [&](size_t i) -> const Placement& { return s.inputs[i][d]; };
    if (!keeps_written(problem, d, s.outputs.size(), out, in) || !dtypes_allow(problem, s.outputs.size(), out, in)) {
      return false;
    }
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      if (problem.call.inputs[i] && !input_allowed(problem, i, d, s.inputs[i][d])) return false;
    }
  }
  return true;
}

// The cheapest of `all`; null: none fits.
const Strategy* cheapest(const Problem& problem, const std::vector<Strategy>& all, SearchEffort& effort) {
  Pricer pricer(problem);
  const Strategy* best = nullptr;
  Score best_score;
  for (const Strategy& s : all) {
    check_shape(problem, s.inputs.size(), s.outputs.size());
    if (!is_allowed(problem, s)) continue;
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      for (const Placement& p : s.outputs[o]) check_output(problem, o, p);
    }
    auto score = pricer.price(s, best_score.cost);
    if (!score || (best != nullptr && !(*score < best_score))) continue;
    best = &s;
    best_score = *score;
  }
  effort.priced += pricer.priced();
  effort.planned += pricer.planned();
  if (best != nullptr) effort.seconds = static_cast<double>(best_score.cost) * 1e-12;
  return best;
}

// Names the layouts that the written inputs may have on the first mesh dim on which none of `all` fits.
[[noreturn]] void throw_none_of(const Problem& problem, const std::vector<Strategy>& all) {
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    std::vector<DimStrategy> options;
    bool fits = false;
    for (const Strategy& s : all) {
      DimStrategy& option = options.emplace_back();
      for (const auto& placements : s.outputs) option.outputs.push_back(placements[d]);
      for (const auto& placements : s.inputs) option.inputs.push_back(placements.empty() ? Placement() : placements[d]);
      const auto out = [&](size_t o) -> const Placement& { return option.outputs[o]; };
      const auto in = [&](size_t i) -> const Placement& { return option.inputs[i]; };
      fits = fits || keeps_written(problem, d, option.outputs.size(), out, in);
    }
    if (!fits) throw_none(problem, d, options);
  }
  throw_none(problem, -1, {});
}

// The combinations of all mesh dims' options, the first kMostRanked of them.
std::vector<Strategy> combinations(const Problem& problem, const std::vector<std::vector<DimStrategy>>& options) {
  constexpr size_t kMostRanked = 4096;
  std::vector<Strategy> all(1);
  all[0].inputs.resize(problem.functional.inputs.size());
  for (const auto& of_dim : options) {
    std::vector<Strategy> longer;
    for (const Strategy& begun : all) {
      for (const DimStrategy& option : of_dim) {
        if (longer.size() == kMostRanked) break;
        Strategy& s = longer.emplace_back(begun);
        s.outputs.resize(option.outputs.size());
        for (size_t i = 0; i < s.inputs.size(); ++i) s.inputs[i].push_back(option.inputs[i]);
        for (size_t o = 0; o < s.outputs.size(); ++o) s.outputs[o].push_back(option.outputs[o]);
      }
    }
    all = std::move(longer);
  }
  return all;
}

Strategy choose_whole(const Problem& problem, const OpRule& rule, SearchEffort& effort) {
  const std::vector<Strategy> all = rule.whole(problem.functional);
  const Strategy* best = cheapest(problem, all, effort);
  if (best == nullptr && problem.limits.any()) best = cheapest(unlimited(problem), all, effort);
  if (best == nullptr) throw_none_of(problem, all);
  return *best;
}

}  // namespace

Strategy choose_strategy(const Problem& problem, const OpRule& rule, SearchEffort& effort) {
  return rule.whole ? choose_whole(problem, rule, effort) : choose_per_dim(problem, rule, effort);
}

std::vector<std::pair<Strategy, Score>> ranked_strategies(const Problem& problem, const OpRule& rule, size_t most) {
  const std::vector<Strategy> all =
      rule.whole ? rule.whole(problem.functional) : combinations(problem, fitting_options(problem, rule));
  Pricer pricer(problem);
  std::vector<std::pair<Strategy, Score>> ranked;
  for (const Strategy& s : all) {
    if (rule.whole && !is_allowed(problem, s)) continue;
    if (const auto score = pricer.price(s, std::numeric_limits<Picoseconds>::max())) ranked.emplace_back(s, *score);
  }
  const auto is_cheaper = [](const auto& a, const auto& b) { return a.second < b.second; };
  std::stable_sort(ranked.begin(), ranked.end(), is_cheaper);
  if (ranked.size() > most) ranked.resize(most);
  return ranked;
}

}  // namespace dtensor::internal
