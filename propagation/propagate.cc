#include "propagation/propagate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"
#include "plan/redistribute_planner.h"
#include "propagation/partial_dtypes.h"
#include "propagation/rule_registry.h"
#include "propagation/shape_inference.h"
#include "propagation/strategy_search.h"

namespace dtensor {
namespace {

// Outputs of a strategy that are no tensors of their own but what the operator writes to.
std::vector<int> find_fixed_outputs(const OpCall& call, const OutputMetas& metas) {
  std::vector<int> result;
  const auto& returns = call.schema().returns();
  if (returns
          .empty()) {  // _foreach_add_() returns nothing; its rule, that of _foreach_add(), gives one output per tensor
    const std::vector<bool> written = call.written();
    for (size_t i = 0; i < written.size(); ++i) {
      if (written[i]) result.push_back(static_cast<int>(i));
    }
    return result;
  }
  for (size_t r = 0; r < returns.size(); ++r) {
    const int count = std::abs(metas.counts[r]);
    const int a = call.written_by_return(r);
    for (int k = 0; k < count; ++k) result.push_back(a < 0 ? -1 : call.slots[a].first + k);
  }
  return result;
}

bool valid_dim(const Placement& p, int64_t ndim) { return !p.is_sharded() || (p.dim() >= 0 && p.dim() < ndim); }

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
  TORCH_CHECK(valid_dim(p, ndim), "rule of ", problem.call.name(), ": ", to_string(p), " for output ", o,
              ", which has ", ndim, " dims");
}

// What factor rules see to by themselves, for strategies written by hand: no Partial comes or goes in a dtype that
// cannot have it.
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
      const auto can = [&](Maths maths) { return passes(maths, in(i), from, out(o), to); };
      if (!can(Maths::kCopy) && !can(Maths::kRing) && !can(Maths::kMonotone)) return false;
    }
    if (!any && !can_leave(out(o), problem.metas.tensors[o]->dtype)) return false;
  }
  return true;
}

// May input i be brought to `wanted` along mesh dim d?
bool input_allowed(const Problem& problem, size_t i, int64_t d, const Placement& wanted) {
  const Spec& spec = *problem.call.inputs[i];
  const Placement& given = problem.given(i, d);
  if (wanted == given) return true;
  if (!valid_dim(wanted, spec.ndim()) || wanted.is_mask_partial()) return false;
  if (!wanted.is_partial()) return true;
  if (wanted.reduce_op() == ReduceOp::kSum) return spec.dtype() != c10::ScalarType::Bool;
  // The identities of the others are no exact way to say a value that is there; only for the sake of a fellow input.
  if (wanted.reduce_op() == ReduceOp::kAvg && !c10::isFloatingType(spec.dtype()) && !c10::isComplexType(spec.dtype())) {
    return false;
  }
  for (size_t other = 0; other < problem.functional.inputs.size(); ++other) {
    if (other != i && problem.functional.inputs[other] && problem.given(other, d) == wanted) return true;
  }
  return false;
}

// Do written tensors keep their layout along mesh dim d? `at(o)`, `in(i)`: the strategy's placements there.
template <typename Out, typename In>
bool keeps_written(const Problem& problem, int64_t d, size_t num_outputs, const Out& out, const In& in) {
  for (size_t o = 0; o < num_outputs; ++o) {
    const int i = problem.fixed_outputs[o];
    if (i >= 0 && problem.call.inputs[i] && out(o) != problem.given(i, d)) return false;
  }
  for (size_t i = 0; i < problem.fixed_inputs.size(); ++i) {
    if (problem.fixed_inputs[i] && in(i) != problem.given(i, d)) return false;
  }
  return true;
}

// "S(0) or R": what the written input i might have been along mesh dim d.
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
    if (!one || !wanted || !valid_dim(*wanted, problem.call.inputs[input]->ndim())) continue;
    // Not a sum or the like unless that is what somebody brought.
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
// cheaper than an all-reduce, and slicing may make a redistribution along another dim cheaper, but what is saved is
// paid again by the operators that follow: they meet a layout that nobody asked for and gather weights to get along
// with it.
void keep_unsharded(const Problem& problem, int64_t d, std::vector<DimStrategy>& options) {
  const size_t num_inputs = problem.functional.inputs.size();
  const auto present = [&](size_t i) { return problem.functional.inputs[i] != nullptr; };
  bool replicated = true;
  for (size_t i = 0; i < num_inputs; ++i) {
    if (!present(i)) continue;
    if (problem.given(i, d).is_sharded()) return;
    replicated = replicated && problem.given(i, d).is_replicate();
  }
  // Nor to make a Partial of what every rank has whole.
  const auto begins = [&](const DimStrategy& s) {
    for (size_t i = 0; i < num_inputs; ++i) {
      if (present(i) && (s.inputs[i].is_sharded() || (replicated && s.inputs[i].is_partial()))) return true;
    }
    return false;
  };
  if (std::all_of(options.begin(), options.end(), begins)) return;
  options.erase(std::remove_if(options.begin(), options.end(), begins), options.end());
}

Strategy choose_per_dim(const Problem& problem, const OpRule& rule, SearchEffort& effort) {
  std::vector<std::vector<DimStrategy>> options;
  std::vector<DimStrategy> all;
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    all = rule.per_dim(problem.functional, d);
    std::vector<DimStrategy> fitting;
    for (const DimStrategy& s : all) {
      check_shape(problem, s.inputs.size(), s.outputs.size());
      bool allowed =
          keeps_written(
              problem, d, s.outputs.size(), [&](size_t o) { return s.outputs[o]; },
              [&](size_t i) { return s.inputs[i]; }) &&
          dtypes_allow(
              problem, s.outputs.size(), [&](size_t o) { return s.outputs[o]; }, [&](size_t i) { return s.inputs[i]; });
      for (size_t i = 0; allowed && i < s.inputs.size(); ++i) {
        allowed = !problem.call.inputs[i] || input_allowed(problem, i, d, s.inputs[i]);
      }
      if (!allowed) continue;
      for (size_t o = 0; o < s.outputs.size(); ++o) check_output(problem, o, s.outputs[o]);
      fitting.push_back(s);
    }
    if (fitting.empty()) throw_none(problem, d, all);
    keep_unsharded(problem, d, fitting);
    options.push_back(std::move(fitting));
  }
  auto best = best_combination(problem, std::move(options), effort);
  if (!best) throw_none(problem, -1, {});
  return *std::move(best);
}

Strategy choose_whole(const Problem& problem, const OpRule& rule, SearchEffort& effort) {
  Pricer pricer(problem);
  const Strategy* best = nullptr;
  Score best_score;
  const std::vector<Strategy> all = rule.whole(problem.functional);
  for (const Strategy& s : all) {
    check_shape(problem, s.inputs.size(), s.outputs.size());
    bool allowed = true;
    for (int64_t d = 0; allowed && d < problem.mesh_ndim(); ++d) {
      allowed = keeps_written(
                    problem, d, s.outputs.size(), [&](size_t o) { return s.outputs[o][d]; },
                    [&](size_t i) { return s.inputs[i][d]; }) &&
                dtypes_allow(
                    problem, s.outputs.size(), [&](size_t o) { return s.outputs[o][d]; },
                    [&](size_t i) { return s.inputs[i][d]; });
      for (size_t i = 0; allowed && i < s.inputs.size(); ++i) {
        allowed = !problem.call.inputs[i] || input_allowed(problem, i, d, s.inputs[i][d]);
      }
    }
    if (!allowed) continue;
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      for (const Placement& p : s.outputs[o]) check_output(problem, o, p);
    }
    auto score = pricer.price(s, best_score.cost);
    if (!score || (best != nullptr && !(*score < best_score))) continue;
    best = &s;
    best_score = *score;
  }
  if (best == nullptr) {
    // For the message only: what the written inputs may be on the first mesh dim that does not fit.
    for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
      std::vector<DimStrategy> options;
      bool fits = false;
      for (const Strategy& s : all) {
        DimStrategy& option = options.emplace_back();
        for (const auto& placements : s.outputs) option.outputs.push_back(placements[d]);
        for (const auto& placements : s.inputs)
          option.inputs.push_back(placements.empty() ? Placement() : placements[d]);
        fits = fits || keeps_written(
                           problem, d, option.outputs.size(), [&](size_t o) { return option.outputs[o]; },
                           [&](size_t i) { return option.inputs[i]; });
      }
      if (!fits) throw_none(problem, d, options);
    }
    throw_none(problem, -1, {});
  }
  effort.priced += pricer.priced();
  effort.planned += pricer.planned();
  effort.seconds = static_cast<double>(best_score.cost) * 1e-12;
  return *best;
}

Placements normalized(const OpCall& call, const Placements& placements, int64_t ndim) {
  auto result = normalize_placements(placements, ndim);
  TORCH_CHECK(result.ok(), "rule of ", call.name(), ": ", std::string(result.status().message()));
  return *std::move(result);
}

}  // namespace

std::string missing_rule_text(const c10::OperatorHandle& op) {
  return absl::StrCat("Operator ", dotted_name(op),
                      " does not have a sharding strategy registered. Register one with "
                      "RuleRegistry::instance().add(\"",
                      c10::toString(op.operator_name()),
                      "\", rule), where `rule` is an OpRule, or run the operator on replicated tensors within a "
                      "ReplicateUnsupported guard");
}

std::shared_ptr<const Decision> propagate(const OpCall& call) {
  SearchEffort usual;
  return propagate(call, usual);
}

std::shared_ptr<const Decision> propagate(const OpCall& call, SearchEffort& effort) {
  auto rule = RuleRegistry::instance().find(call.op);
  TORCH_CHECK_NOT_IMPLEMENTED(rule, missing_rule_text(call.op));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    TORCH_CHECK(!call.inputs[i] || call.inputs[i]->mesh() == call.mesh, call.name(), ": argument '",
                call.input_name(static_cast<int>(i)), "' lies on another mesh than the others, in ", call.to_string());
  }

  Problem problem{call, call.without_outs(), infer_outputs(call, *rule), {}, {}};
  for (const auto& meta : problem.metas.tensors) {
    problem.functional.result_dtypes.push_back(meta ? std::optional(meta->dtype) : std::nullopt);
  }
  problem.fixed_outputs = find_fixed_outputs(call, problem.metas);
  problem.fixed_inputs = problem.functional.written();
  for (size_t i = 0; i < problem.fixed_inputs.size(); ++i) {
    problem.fixed_inputs[i] = problem.fixed_inputs[i] && call.inputs[i];
  }
  Strategy choice = rule->whole ? choose_whole(problem, *rule, effort) : choose_per_dim(problem, *rule, effort);

  auto plan = std::make_shared<Decision>();
  plan->rule = rule;
  plan->given = call.inputs;
  plan->computed = call.inputs;  // out= arguments: as they are
  plan->input_plans.resize(call.inputs.size());
  plan->gradient_target = call.gradient_target;
  for (size_t i = 0; i < choice.inputs.size(); ++i) {
    const SpecPtr& spec = call.inputs[i];
    if (!spec || spec->placements() == choice.inputs[i]) continue;
    plan->computed[i] = spec->with_placements(choice.inputs[i]);
    if (plan->computed[i] != spec) plan->input_plans[i] = cached_plan(spec, plan->computed[i]->placements());
  }

  const OutputMetas& metas = problem.metas;
  plan->output_counts = metas.counts;
  plan->output_offsets = metas.offsets;
  for (size_t o = 0; o < metas.tensors.size(); ++o) {
    if (!metas.tensors[o]) {
      plan->outputs.push_back(nullptr);
      continue;
    }
    const int64_t ndim = static_cast<int64_t>(metas.tensors[o]->sizes.size());
    plan->outputs.push_back(Spec::get(call.mesh, normalized(call, choice.outputs[o], ndim), *metas.tensors[o]));
  }
  return plan;
}

}  // namespace dtensor
