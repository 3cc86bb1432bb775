#include "propagation/propagate.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"
#include "plan/redistribute_plan.h"
#include "plan/redistribute_planner.h"
#include "propagation/choose_strategy.h"
#include "propagation/rule_registry.h"
#include "propagation/shape_inference.h"
#include "propagation/strategy_pricer.h"

namespace dtensor {
using namespace internal;

namespace {

// ------------------------------------------------------------ preferred layouts

// Preferred layouts of results: the shards that their elements would have if the inputs had stayed where they were.
// Rows looked up for a sharded batch are Partial on all ranks of a table sharded by rows, and sharded by columns of a
// table sharded by columns; they prefer the batch sharding.

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

// Decision::output_hints of a call that is computed as `choice` says.
std::vector<TensorHints> find_output_hints(const Problem& problem, const Strategy& choice, const OpRule& rule,
                                           const std::vector<SpecPtr>& outputs) {
  std::vector<TensorHints> result;
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
    result[o].preferred_layout = outputs[o]->with_placements(preferred);
  }
  return result;
}

// Problem::displaced: the inputs that have other shards than they prefer, and the results could have the preferred
// ones, too (not a sum over the dim that is sharded there). Empty: none is.
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
  if (call.context.inputs.empty() || problem.metas.tensors.empty()) return displaced;
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    if (rule.whole) {
      find(d, rule.whole(call), [d](const Placements& p) { return p[d]; });
    } else {
      find(d, rule.per_dim(call, d), [](const Placement& p) { return p; });
    }
  }
  return displaced;
}

// ------------------------------------------------------------ problem and decision

// Outputs of a strategy that are not new tensors but written arguments.
std::vector<int> find_fixed_outputs(const OpCall& call, const OutputMetas& metas) {
  std::vector<int> result;
  const auto& returns = call.schema().returns();
  if (returns.empty()) {
    // _foreach_add_() returns nothing; its rule, that of _foreach_add(), gives one output per tensor.
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

SpecPtr output_spec(const OpCall& call, const Placements& placements, const TensorMeta& meta) {
  const absl::Status error = check_placements(placements, static_cast<int64_t>(meta.sizes.size()));
  TORCH_CHECK(error.ok(), "rule of ", call.name(), ": ", std::string(error.message()));
  return Spec::get(call.mesh, placements, meta);
}

// Throws the error for the input that needs most: its limit suffices for all.
[[noreturn]] void throw_over_limit(const OpCall& call, const std::vector<SpecPtr>& computed) {
  size_t worst = 0;
  int64_t most = -1;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (computed[i] == call.inputs[i]) continue;
    const int64_t least = least_peak_bytes(call.inputs[i], computed[i]->placements());
    if (least > most) {
      worst = i;
      most = least;
    }
  }
  TORCH_CHECK_VALUE(false, call.name(), ": argument '", call.input_name(static_cast<int>(worst)), "' has to go from ",
                    to_string(call.inputs[worst]->placements()), " to ", to_string(computed[worst]->placements()),
                    ", and max_bytes is ", call.context.scope.limits.max_bytes, ", but every route needs at least ",
                    most, " bytes per rank; raise max_bytes. Call: ", call.to_string());
}

// The redistributions that bring the inputs to `computed`.
std::vector<std::shared_ptr<const RedistributePlan>> plan_inputs(const OpCall& call,
                                                                 const std::vector<SpecPtr>& computed) {
  std::vector<std::shared_ptr<const RedistributePlan>> plans(call.inputs.size());
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (computed[i] == call.inputs[i]) continue;
    const Placements& to = computed[i]->placements();
    plans[i] = cached_plan_within(moved_of(call, i, to), to, call.context.scope.limits);
    if (!plans[i]) throw_over_limit(call, computed);
  }
  return plans;
}

Problem problem_of(const OpCall& call, const OpRule* rule) {
  TORCH_CHECK_NOT_IMPLEMENTED(rule, missing_rule_text(call.op));
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    TORCH_CHECK(!call.inputs[i] || call.inputs[i]->mesh() == call.mesh, call.name(), ": argument '",
                call.input_name(static_cast<int>(i)), "' lies on another mesh than the others, in ", call.to_string());
  }

  OpCall functional = call.without_outs();
  functional.results = std::make_shared<const OutputMetas>(infer_outputs(call, *rule));
  Problem problem{call, std::move(functional)};
  if (rule->flops) problem.flops = rule->flops(problem.functional);
  problem.fixed_outputs = find_fixed_outputs(call, problem.metas);
  problem.fixed_inputs = problem.functional.written();
  for (size_t i = 0; i < problem.fixed_inputs.size(); ++i) {
    problem.fixed_inputs[i] = problem.fixed_inputs[i] && call.inputs[i] && !call.context.is_mutable(i);
  }
  problem.displaced = find_displaced_inputs(problem, *rule);
  return problem;
}

bool is_direct(const Decision& decision) {
  const auto is_whole = [](const SpecPtr& spec) { return spec && !spec->has_partial(); };
  const auto is_offset = [](int64_t offset) { return offset != 0; };
  return absl::c_all_of(decision.call->inputs, is_whole) && !decision.moves_inputs() &&
         decision.output_counts == std::vector<int>{-1} && decision.outputs[0] &&
         absl::c_none_of(decision.output_offsets, is_offset) && decision.output_hints.empty() &&
         decision.calls_operator();
}

std::shared_ptr<const Decision> decision_of(const Problem& problem, const Strategy& choice,
                                            std::shared_ptr<const OpRule> rule) {
  const OpCall& call = problem.call;
  auto decision = std::make_shared<Decision>();
  decision->rule = std::move(rule);
  decision->call = to_keep(call);
  decision->computed = call.inputs;  // out= arguments: as they are
  for (size_t i = 0; i < choice.inputs.size(); ++i) {
    const SpecPtr& spec = call.inputs[i];
    if (!spec || spec->placements() == choice.inputs[i]) continue;
    decision->computed[i] = spec->with_placements(choice.inputs[i]);
  }
  decision->input_plans = plan_inputs(call, decision->computed);

  const OutputMetas& metas = problem.metas;
  decision->output_counts = metas.counts;
  decision->output_offsets = metas.offsets;
  for (size_t o = 0; o < metas.tensors.size(); ++o) {
    decision->outputs.push_back(metas.tensors[o] ? output_spec(call, choice.outputs[o], *metas.tensors[o]) : nullptr);
  }
  decision->output_hints = find_output_hints(problem, choice, *decision->rule, decision->outputs);
  decision->direct = is_direct(*decision);
  return decision;
}

}  // namespace

int64_t Decision::bytes() const {
  int64_t total = 0;
  for (const auto& plan : input_plans) total += plan ? plan->bytes : 0;
  return total;
}

bool Decision::calls_operator() const {
  if (!rule->local) return true;
  const auto is_integer = [](const SpecPtr& spec) {
    return spec && !spec->meta().wrapped_number && c10::isIntegralType(spec->dtype(), /*includeBool=*/true);
  };
  return rule->local_calls_operator && absl::c_none_of(computed, is_integer) && outputs[0] &&
         !outputs[0]->has_partial();
}

double Decision::input_seconds() const {
  double total = 0;
  for (const auto& plan : input_plans) total += plan ? plan->seconds : 0;
  return total;
}

bool Decision::moves_inputs() const {
  return absl::c_any_of(input_plans, [](const auto& plan) { return plan != nullptr; });
}

bool Decision::communicates() const {
  return absl::c_any_of(input_plans, [](const auto& plan) { return plan && !plan->is_local(); });
}

std::shared_ptr<const OpCall> to_keep(const OpCall& call) {
  const auto has_state = [](const c10::IValue& arg) {
    return !(arg.isNone() || arg.isScalar() || arg.isBool() || arg.isString() || arg.isDevice() || arg.isList());
  };
  auto copy = std::make_shared<OpCall>(call);
  copy->mesh = call.mesh.idle();
  for (c10::IValue& arg : copy->args) {
    if (arg.isList()) {
      arg = arg.deepcopy();
    } else if (has_state(arg)) {
      arg = c10::IValue();
    }
  }
  return copy;
}

std::string Decision::explain() const {
  auto layouts = [](const std::vector<SpecPtr>& specs) {
    return absl::StrJoin(specs, ", ", [](std::string* out, const SpecPtr& spec) {
      absl::StrAppend(out, spec ? to_string(spec->placements()) : "None");
    });
  };
  std::string text = absl::StrCat(call->name(), "(", layouts(computed), ") -> ", layouts(outputs));
  for (size_t i = 0; i < input_plans.size(); ++i) {
    if (input_plans[i]) absl::StrAppend(&text, "; input ", i, ": ", input_plans[i]->to_string());
  }
  return text;
}

std::shared_ptr<const Decision> propagate(const OpCall& call, std::shared_ptr<const OpRule> rule,
                                          SearchEffort* effort) {
  const Problem problem = problem_of(call, rule.get());
  SearchEffort usual;
  const Strategy choice = choose_strategy(problem, *rule, effort != nullptr ? *effort : usual);
  return decision_of(problem, choice, std::move(rule));
}

std::shared_ptr<const Decision> propagate(const OpCall& call) {
  return propagate(call, RuleRegistry::instance().find(call.op));
}

std::shared_ptr<const Decision> propagate(const OpCall& call, SearchEffort& effort) {
  return propagate(call, RuleRegistry::instance().find(call.op), &effort);
}

std::vector<PricedDecision> propagate_all(const OpCall& call, std::shared_ptr<const OpRule> rule, size_t most) {
  const Problem problem = problem_of(call, rule.get());
  std::vector<PricedDecision> all;
  for (const auto& [strategy, score] : ranked_strategies(problem, *rule, most)) {
    all.push_back({decision_of(problem, strategy, rule), static_cast<double>(score.cost) * 1e-12});
  }
  return all;
}

namespace internal {

std::string missing_rule_text(const c10::OperatorHandle& op) {
  return absl::StrCat("Operator ", dotted_name(op),
                      " does not have a sharding strategy registered. Register one with "
                      "RuleRegistry::instance().add(\"",
                      c10::toString(op.operator_name()),
                      "\", rule), where `rule` is an OpRule, or run the operator on replicated tensors within a "
                      "ReplicateUnsupported guard");
}

}  // namespace internal

}  // namespace dtensor
