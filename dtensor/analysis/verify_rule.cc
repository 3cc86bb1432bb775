#include "dtensor/verify_rule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <ostream>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/analysis/sample_call.h"
#include "dtensor/analysis/sample_layouts.h"
#include "dtensor/analysis/step_recorder.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/step_decider.h"
#include "mesh/world.h"
#include "observe/comm_debug_mode.h"
#include "propagation/propagate.h"
#include "propagation/rule_registry.h"

namespace dtensor {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;

// Waits for deferred results: their communication belongs to the call, though not done at the call.
void read(const Tensors& results) {
  for (const at::Tensor& t : results) {
    if (is_dtensor(t)) meta_for_read(t);
  }
}

// Decides one operator's calls by a given strategy.
class Forced final : public StepDecider {
 public:
  Forced(c10::OperatorName op, std::vector<Placements> inputs) : op_(std::move(op)), inputs_(std::move(inputs)) {}
  void next() override {}
  std::shared_ptr<const Decision> decide(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                         const std::function<std::shared_ptr<const Decision>()>& usual) override {
    if (done_ || call.op.operator_name() != op_) return usual();
    for (const PricedDecision& way : propagate_all(call, rule, std::numeric_limits<size_t>::max())) {
      if (computed_placements(*way.decision) != inputs_) continue;
      done_ = true;
      return way.decision;
    }
    return usual();
  }
  bool done() const { return done_; }

 private:
  const c10::OperatorName op_;
  const std::vector<Placements> inputs_;
  bool done_ = false;
};

class Verifier {
 public:
  Verifier(const SampleCall& call, const VerifyRuleOptions& options)
      : call_(call), options_(options), expected_(call, options.gradients, options.seed) {}

  RuleReport run() {
    for (const auto& shape : options_.meshes) try_layouts(mesh_of(shape));
    const OpInfo& info = op_info(call_.op());
    const auto rule = RuleRegistry::instance().find(call_.op());
    // A composite operator is not decided by the rule of its name, and an out= form uses that of the functional one.
    if (options_.strategies && rule && !info.composite_implicit && !info.has_outs) try_offered(*rule);
    if (options_.missing) find_missing();
    report_.local.assign(local_.begin(), local_.end());
    report_.has_gradients = expected_.has_gradients();
    return std::move(report_);
  }

 private:
  DeviceMesh mesh_of(const std::vector<int64_t>& shape) const {
    int64_t ranks = 1;
    for (const int64_t n : shape) ranks *= n;
    const c10::Device device = call_.tensors().empty() ? c10::kCPU : call_.tensors()[0].device();
    return DeviceMesh(World::local(ranks, device), shape);
  }

  void note(RuleFinding::Kind kind, const DeviceMesh& mesh, const Layouts& layouts, const std::string& what) {
    report_.findings.push_back(
        {kind, absl::StrCat(call_.name(), "(", text_of(layouts), ") on ", mesh.to_string(), ": ", what)});
  }

  void note_local(const DeviceMesh& mesh, const Layouts& layouts, const SampleCall::Results& results) {
    const auto is = [&](bool (Placement::*kind)() const) {
      return std::any_of(layouts.begin(), layouts.end(), [&](const Placements& p) { return (p[0].*kind)(); });
    };
    if (mesh.ndim() != 1 || mesh.size() != 2 || !is(&Placement::is_shard) || is(&Placement::is_partial)) return;
    const auto is_empty = [](const at::Tensor& t) { return t.numel() == 0; };  // it moves without cost
    if (std::any_of(call_.tensors().begin(), call_.tensors().end(), is_empty)) return;
    Layouts out;
    for (const at::Tensor& t : results.tensors) {
      if (is_dtensor(t)) out.push_back(spec_of(t)->placements());
    }
    local_.insert(absl::StrCat(text_of(layouts), " -> ", text_of(out)));
  }

  Tensors distributed(const DeviceMesh& mesh, const Layouts& layouts, bool gradients) const {
    Tensors inputs;
    for (size_t i = 0; i < layouts.size(); ++i) {
      inputs.push_back(laid_out(call_.tensors()[i], mesh, layouts[i], options_.seed + i));
      const at::Tensor& t = inputs.back();
      if (gradients && (t.is_floating_point() || t.is_complex())) t.requires_grad_();
    }
    return inputs;
  }

  // Runs the call in `layouts`. False: it was refused, or had a fault, which is noted.
  bool try_one(const DeviceMesh& mesh, const Layouts& layouts, RuleFinding::Kind wrong) {
    try {
      const Tensors inputs = distributed(mesh, layouts, expected_.differentiated());
      CommDebugMode comm;
      const auto actual = call_.run(inputs);
      read(actual.tensors);
      const bool is_local = comm.total() == 0;
      std::string text = expected_.wrong_result(actual, options_.tolerance);
      if (text.empty()) text = expected_.wrong_gradient(actual, inputs, options_.tolerance);
      if (text.empty() && is_local && wrong == RuleFinding::Kind::kWrongValue) note_local(mesh, layouts, actual);
      if (text.empty()) return true;
      note(wrong, mesh, layouts, text);
    } catch (const c10::NotImplementedError&) {
      ++report_.refused;
    } catch (const WrittenLayoutError&) {
      ++report_.refused;
    } catch (const c10::Error& e) {
      note(RuleFinding::Kind::kError, mesh, layouts, absl::StrCat("throws: ", e.what_without_backtrace()));
    } catch (const std::exception& e) {
      note(RuleFinding::Kind::kError, mesh, layouts, absl::StrCat("throws: ", e.what()));
    }
    return false;
  }

  void try_layouts(const DeviceMesh& mesh) {
    for (const Layouts& layouts :
         layouts_of(call_.tensors(), mesh.ndim(), options_.most_layouts, options_.seed, /*all_partials=*/true)) {
      ++report_.layouts;
      try_one(mesh, layouts, RuleFinding::Kind::kWrongValue);
    }
  }

  OpCall op_call(const Tensors& inputs) const {
    std::vector<SpecPtr> specs;
    for (const at::Tensor& t : inputs) specs.push_back(spec_of(t));
    return OpCall::make(call_.name(), specs, call_.arguments(inputs));
  }

  // The inputs' placements in the strategies that the rule has for inputs of these placements, or Replicate where a
  // tensor cannot have them.
  std::vector<Layouts> strategies_given(const Placement& given, const OpRule& rule, const DeviceMesh& mesh) const {
    Layouts layouts;
    for (const at::Tensor& t : call_.tensors()) {
      const bool can_have = absl::c_linear_search(placements_of(t, true), given);
      layouts.push_back({can_have ? given : Placement(Replicate())});
    }
    const OpCall call = op_call(distributed(mesh, layouts, false));
    std::vector<Layouts> result;
    if (rule.whole) {
      for (const Strategy& s : rule.whole(call)) result.push_back(s.inputs);
      return result;
    }
    for (const DimStrategy& s : rule.per_dim(call, 0)) {
      Layouts& inputs = result.emplace_back();
      for (const Placement& p : s.inputs) inputs.push_back({p});
    }
    return result;
  }

  // Tries each strategy for a mesh dim of 2, on inputs in its layouts. A rule has strategies on a kind of Partial only
  // where an input has it.
  void try_offered(const OpRule& rule) {
    if (call_.tensors().empty()) return;
    const DeviceMesh mesh = mesh_of({2});
    std::vector<Layouts> offered;
    const Placement kinds[] = {Replicate(), Partial(ReduceOp::kAvg), Partial(ReduceOp::kMax), Partial(ReduceOp::kMin),
                               Partial(ReduceOp::kProduct)};
    for (const Placement& given : kinds) {
      try {
        for (Layouts& inputs : strategies_given(given, rule, mesh)) {
          if (!absl::c_linear_search(offered, inputs)) offered.push_back(std::move(inputs));
        }
      } catch (const c10::Error&) {
        continue;  // calls whose handlers convert them first
      }
    }
    for (const auto& inputs : offered) {
      if (inputs.size() != call_.tensors().size()) return;
      bool can_be = true;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const auto options = placements_of(call_.tensors()[i], true);
        can_be =
            can_be && inputs[i].size() == 1 && std::find(options.begin(), options.end(), inputs[i][0]) != options.end();
      }
      if (!can_be) continue;
      Forced forced(call_.op().operator_name(), inputs);
      const DispatchScopeGuard deciding([&](DispatchScope& s) { s.step_decider = &forced; });
      try_one(mesh, inputs, RuleFinding::Kind::kWrongStrategy);
      report_.strategies += forced.done() ? 1 : 0;
    }
  }

  // Whether a dim of one element is split. Then one rank holds it, and computes everything unless data moves, so that
  // no work is shared.
  bool is_on_one_rank(const Layouts& layouts) const {
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (layouts[i][0].is_shard() && call_.tensors()[i].size(layouts[i][0].dim()) == 1) return true;
    }
    return false;
  }

  void find_missing() {
    if (call_.tensors().empty() || call_.writes()) return;
    const DeviceMesh two = mesh_of({2}), three = mesh_of({3});
    const std::vector<Tensors> others = other_values(call_);
    for (const Layouts& layouts :
         layouts_of(call_.tensors(), 1, options_.most_layouts, options_.seed, /*all_partials=*/false)) {
      const auto is_cut = [](const Placements& p) { return p[0].is_shard(); };
      const auto is_partial = [](const Placements& p) { return p[0].is_partial(); };
      if (std::none_of(layouts.begin(), layouts.end(), is_cut) ||
          std::any_of(layouts.begin(), layouts.end(), is_partial) || is_on_one_rank(layouts))
        continue;
      // Again with another number of ranks and other values, to exclude chance.
      const auto free = [&](const DeviceMesh& mesh, const Tensors& values) {
        return free_layout(call_, mesh, layouts, values, options_.tolerance);
      };
      const auto found = free(three, call_.tensors());
      if (!found || free(two, call_.tensors()) != found) continue;
      if (!std::all_of(others.begin(), others.end(), [&](const Tensors& v) { return free(three, v) == found; }))
        continue;
      CommDebugMode comm;
      try {
        const Tensors inputs = distributed(three, layouts, false);
        comm.reset();
        read(call_.run(inputs).tensors);
      } catch (const std::exception&) {
        continue;  // noted when layouts are tried
      }
      if (comm.total() == 0) continue;
      note(RuleFinding::Kind::kMissingStrategy, three, layouts,
           absl::StrCat("gives ", to_string(*found), " without communication; the engine: ", comm.total(),
                        " collectives, ", comm.bytes(), " bytes"));
    }
  }

  const SampleCall& call_;
  const VerifyRuleOptions& options_;
  const ExpectedResults expected_;
  RuleReport report_;
  std::set<std::string> local_;  // RuleReport::local
};

}  // namespace

RuleReport verify_rule(const OpSample& sample, const VerifyRuleOptions& options) {
  const SampleCall call(sample.op, sample.args);
  const OpInfo& info = op_info(call.op());
  TORCH_CHECK_VALUE(info.handler != nullptr || info.composite_implicit || RuleRegistry::instance().find(call.op()),
                    "[verify_rule] ", missing_rule_text(call.op()));
  return Verifier(call, options).run();
}

bool RuleReport::is_right() const {
  return std::all_of(findings.begin(), findings.end(),
                     [](const RuleFinding& f) { return f.kind == RuleFinding::Kind::kMissingStrategy; });
}

const char* to_string(RuleFinding::Kind kind) {
  switch (kind) {
    case RuleFinding::Kind::kError:
      return "error";
    case RuleFinding::Kind::kWrongValue:
      return "wrong value";
    case RuleFinding::Kind::kWrongStrategy:
      return "wrong strategy";
    case RuleFinding::Kind::kMissingStrategy:
      return "missing strategy";
  }
  return "";
}

std::string RuleReport::to_string() const {
  std::string text = absl::StrCat(is_right() ? "right" : "WRONG", " in ", layouts, " layouts (", refused,
                                  " refused) and ", strategies, " strategies\n");
  for (const RuleFinding& f : findings) absl::StrAppend(&text, "  ", dtensor::to_string(f.kind), ": ", f.text, "\n");
  return text;
}

std::ostream& operator<<(std::ostream& os, const RuleReport& report) { return os << report.to_string(); }

}  // namespace dtensor
