#include "propagation/propagate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "propagation/cost_model.h"
#include "propagation/partial_dtypes.h"
#include "propagation/redistribute_planner.h"

namespace dtensor {
namespace {

// Estimates are compared in picoseconds: sums of the same numbers in another order stay equal.
using Picoseconds = int64_t;
Picoseconds picoseconds(double seconds) { return std::llround(seconds * 1e12); }

// What is to be decided: the call as rules see it, what comes out, and which placements are not free.
struct Problem {
  const OpCall& call;  // as called
  OpCall functional;   // without out= arguments
  OutputMetas metas;
  // Per output of a strategy: the input whose layout it must have since it is written there, or -1.
  std::vector<int> fixed_outputs;
  // Per input of `functional`: its layout must stay.
  std::vector<bool> fixed_inputs;

  int64_t mesh_ndim() const { return call.mesh.ndim(); }
  const Placement& given(size_t input, int64_t d) const { return call.inputs[input]->placements()[d]; }
  std::shared_ptr<const CostModel> cost = cost_model(call.mesh.world());
};

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

// What factor rules see to by themselves, for strategies written by hand: no Partial comes or goes in a dtype that cannot have it.
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

struct Score {
  Picoseconds cost = std::numeric_limits<Picoseconds>::max();
  int changed = 0;

  friend bool operator<(const Score& a, const Score& b) {
    return std::tie(a.cost, a.changed) < std::tie(b.cost, b.changed);
  }
};

// Cost of strategies, each input's redistribution planned once.
class Pricer {
 public:
  explicit Pricer(const Problem& problem) : problem_(problem) {}

  // nullopt: not possible, or dearer than `limit`.
  std::optional<Score> price(const Strategy& s, Picoseconds limit) {
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      if (o < problem_.metas.tensors.size() && !problem_.metas.tensors[o]) continue;
      if (!normalize_placements(s.outputs[o], std::numeric_limits<int32_t>::max()).ok()) return std::nullopt;
    }
    // First with lower bounds in place of what is not planned yet.
    Score score{made_partials(s), 0};
    changes_.clear();
    for (size_t i = 0; i < s.inputs.size(); ++i) {
      const SpecPtr& spec = problem_.call.inputs[i];
      if (!spec || spec->placements() == s.inputs[i]) continue;
      Price& price = prices_.try_emplace({i, s.inputs[i]}, Price{}).first->second;
      if (price.cost < 0)
        price.cost = normalize_placements(s.inputs[i], spec->ndim()).ok() ? bound(*spec, s.inputs[i]) : kNever;
      if (price.cost == kNever) return std::nullopt;
      score.cost += price.cost;
      ++score.changed;
      changes_.push_back(i);
    }
    for (size_t i : changes_) {
      if (score.cost > limit) return std::nullopt;
      Price& price = prices_.find(std::make_pair(i, s.inputs[i]))->second;
      if (price.planned) continue;
      const Spec& spec = *problem_.call.inputs[i];
      score.cost -= price.cost;
      const PlanOptions options{problem_.cost, {}};
      price.cost = picoseconds(plan_redistribution(spec.mesh(), spec.meta(), spec.placements(), s.inputs[i], options).seconds);
      price.planned = true;
      score.cost += price.cost;
    }
    return score.cost > limit ? std::nullopt : std::optional(score);
  }

 private:
  static constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

  struct Price {
    Picoseconds cost = -1;
    bool planned = false;  // else a lower bound
  };

  // Moving a sharded input to another dim so that the result is a Partial (the k-split of a matmul) puts off a reduction that
  // somebody has to pay for: it is part of the price.
  Picoseconds made_partials(const Strategy& s) const {
    const DeviceMesh& mesh = problem_.call.mesh;
    Picoseconds total = 0;
    for (int64_t d = 0; d < mesh.ndim(); ++d) {
      bool moved = false;
      for (size_t i = 0; i < s.inputs.size(); ++i) {
        if (!problem_.call.inputs[i]) continue;
        const Placement& given = problem_.given(i, d);
        moved = moved || (given.is_sharded() && s.inputs[i][d].is_sharded() && given != s.inputs[i][d]);
      }
      for (size_t o = 0; moved && o < s.outputs.size() && o < problem_.metas.tensors.size(); ++o) {
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

  // A rank must receive what it holds more than before, and what is a sum of others' addends.
  Picoseconds bound(const Spec& from, const Placements& to) const {
    bool reduces = false;
    for (size_t d = 0; d < to.size(); ++d) {
      reduces = reduces || (from.mesh().size(static_cast<int64_t>(d)) > 1 && from.placements()[d].is_partial() &&
                            !to[d].is_partial());
    }
    const int64_t bytes = part_bytes(from, to) - (reduces ? 0 : part_bytes(from, from.placements()));
    if (bytes <= 0) return 0;
    return std::max<Picoseconds>(0, picoseconds(problem_.cost->least(bytes)) - 1);
  }

  static int64_t part_bytes(const Spec& spec, const Placements& placements) {
    const Shape origin(placements.size(), 0);  // nobody's part is larger
    int64_t bytes = static_cast<int64_t>(c10::elementSize(spec.dtype()));
    for (int64_t n : local_shape(spec.sizes(), spec.mesh().shape(), placements, origin)) bytes *= n;
    return bytes;
  }

  const Problem& problem_;
  absl::flat_hash_map<std::pair<size_t, Placements>, Price> prices_;
  std::vector<size_t> changes_;
};

// The best combination of one strategy per mesh dim, by branch and bound.
class Search {
 public:
  Search(const Problem& problem, std::vector<std::vector<DimStrategy>> options)
      : problem_(problem), options_(std::move(options)), pricer_(problem) {
    traffic_.resize(options_.size());
    order_.resize(options_.size());
    for (size_t d = 0; d < options_.size(); ++d) {
      std::vector<int> changed;
      for (const DimStrategy& option : options_[d]) {
        traffic_[d].push_back(needs_traffic(option, d));
        changed.push_back(num_changed(option, d));
        order_[d].push_back(order_[d].size());
      }
      std::stable_sort(order_[d].begin(), order_[d].end(), [&](size_t a, size_t b) { return changed[a] < changed[b]; });
    }
  }

  std::optional<Strategy> run() {
    chosen_.assign(options_.size(), 0);
    if (!run_unchanged()) branch(0, 0);
    if (!found_) return std::nullopt;
    return combine(best_chosen_);
  }

 private:
  // The first strategies that take every input as it is, if all mesh dims have one: nothing can be cheaper.
  bool run_unchanged() {
    for (size_t d = 0; d < options_.size(); ++d) {
      size_t k = 0;
      while (k < options_[d].size() && num_changed(options_[d][k], d) > 0) ++k;
      if (k == options_[d].size()) return false;
      chosen_[d] = k;
    }
    consider();
    return found_;
  }

  int num_changed(const DimStrategy& option, int64_t d) const {
    int changed = 0;
    for (size_t i = 0; i < option.inputs.size(); ++i) {
      changed += problem_.call.inputs[i] && option.inputs[i] != problem_.given(i, d);
    }
    return changed;
  }

  // The inputs (the first 64) whose change along mesh dim d takes a collective, whatever happens on the other dims.
  uint64_t needs_traffic(const DimStrategy& option, int64_t d) const {
    uint64_t mask = 0;
    if (problem_.call.mesh.size(d) == 1) return mask;
    for (size_t i = 0; i < std::min<size_t>(option.inputs.size(), 64); ++i) {
      const Spec* spec = problem_.call.inputs[i].get();
      if (spec == nullptr || spec->meta().numel() == 0) continue;
      const Placement& from = problem_.given(i, d);
      const Placement& to = option.inputs[i];
      if ((from.is_sharded() && to.is_replicate()) || (from.is_partial() && !to.is_partial())) mask |= uint64_t{1} << i;
    }
    return mask;
  }

  void branch(size_t d, uint64_t traffic) {
    // Every redistribution with traffic pays the latency of one collective at least.
    if (found_ && __builtin_popcountll(traffic) * latency_ > best_.cost) return;
    if (d == options_.size()) return consider();
    for (size_t k : order_[d]) {
      chosen_[d] = k;
      branch(d + 1, traffic | traffic_[d][k]);
    }
  }

  void consider() {
    auto score = pricer_.price(combine(chosen_), found_ ? best_.cost : std::numeric_limits<Picoseconds>::max());
    if (!score) return;
    if (found_ && (best_ < *score || (!(*score < best_) && best_chosen_ < chosen_))) return;
    found_ = true;
    best_ = *score;
    best_chosen_ = chosen_;
  }

  Strategy combine(const std::vector<size_t>& chosen) const {
    Strategy s;
    s.inputs.resize(problem_.functional.inputs.size());
    for (size_t d = 0; d < options_.size(); ++d) {
      const DimStrategy& option = options_[d][chosen[d]];
      s.outputs.resize(option.outputs.size());
      for (size_t i = 0; i < s.inputs.size(); ++i) s.inputs[i].push_back(option.inputs[i]);
      for (size_t o = 0; o < s.outputs.size(); ++o) s.outputs[o].push_back(option.outputs[o]);
    }
    return s;
  }


  const Problem& problem_;
  const Picoseconds latency_ = picoseconds(problem_.cost->least(0)) - 1;
  const std::vector<std::vector<DimStrategy>> options_;  // per mesh dim, best first
  std::vector<std::vector<uint64_t>> traffic_;           // needs_traffic() of each
  std::vector<std::vector<size_t>> order_;               // in which they are tried: few changes first
  Pricer pricer_;
  std::vector<size_t> chosen_, best_chosen_;
  Score best_;
  bool found_ = false;
};

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

// Along a mesh dim on which no input is sharded, the engine does not begin to shard by itself. A reduce-scatter is cheaper than
// an all-reduce, and slicing may make a redistribution along another dim cheaper, but what is saved is paid again by the
// operators that follow: they meet a layout that nobody asked for and gather weights to get along with it.
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

Strategy choose_per_dim(const Problem& problem, const OpRule& rule) {
  std::vector<std::vector<DimStrategy>> options;
  std::vector<DimStrategy> all;
  for (int64_t d = 0; d < problem.mesh_ndim(); ++d) {
    all = rule.per_dim(problem.functional, d);
    std::vector<DimStrategy> fitting;
    for (const DimStrategy& s : all) {
      check_shape(problem, s.inputs.size(), s.outputs.size());
      bool allowed = keeps_written(
          problem, d, s.outputs.size(), [&](size_t o) { return s.outputs[o]; }, [&](size_t i) { return s.inputs[i]; }) &&
                     dtypes_allow(problem, s.outputs.size(), [&](size_t o) { return s.outputs[o]; }, [&](size_t i) { return s.inputs[i]; });
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
  auto best = Search(problem, std::move(options)).run();
  if (!best) throw_none(problem, -1, {});
  return *std::move(best);
}

Strategy choose_whole(const Problem& problem, const OpRule& rule) {
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
                dtypes_allow(problem, s.outputs.size(), [&](size_t o) { return s.outputs[o][d]; }, [&](size_t i) { return s.inputs[i][d]; });
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
  return *best;
}

Placements normalized(const OpCall& call, const Placements& placements, int64_t ndim) {
  auto result = normalize_placements(placements, ndim);
  TORCH_CHECK(result.ok(), "rule of ", call.name(), ": ", std::string(result.status().message()));
  return *std::move(result);
}

}  // namespace

int64_t OpPlan::bytes() const {
  int64_t total = 0;
  for (const auto& plan : input_plans) total += plan ? plan->bytes : 0;
  return total;
}

std::string OpPlan::explain(const OpCall& call) const {
  auto layouts = [](const std::vector<SpecPtr>& specs) {
    return absl::StrJoin(specs, ", ", [](std::string* out, const SpecPtr& spec) {
      absl::StrAppend(out, spec ? to_string(spec->placements()) : "None");
    });
  };
  std::string text = absl::StrCat(call.name(), "(", layouts(computed), ") -> ", layouts(outputs));
  for (size_t i = 0; i < input_plans.size(); ++i) {
    if (input_plans[i]) absl::StrAppend(&text, "; input ", i, ": ", input_plans[i]->to_string());
  }
  return text;
}

std::string missing_rule_text(const c10::OperatorHandle& op) {
  return absl::StrCat("Operator ", dotted_name(op), " does not have a sharding strategy registered. Register one with "
                      "RuleRegistry::instance().add(\"", c10::toString(op.operator_name()),
                      "\", rule), where `rule` is an OpRule, or run the operator on replicated tensors within a "
                      "ReplicateUnsupported guard");
}

std::shared_ptr<const OpPlan> propagate(const OpCall& call) {
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
  Strategy choice = rule->whole ? choose_whole(problem, *rule) : choose_per_dim(problem, *rule);

  auto plan = std::make_shared<OpPlan>();
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
    plan->aliases.push_back(problem.fixed_outputs[o]);
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
