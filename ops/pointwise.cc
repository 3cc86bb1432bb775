#include "ops/pointwise.h"

#include <algorithm>

#include "ops/register.h"

namespace dtensor {
namespace {

std::vector<int> indices(const OpCall& call, const Names& names) {
  std::vector<int> result;
  for (const auto& name : names) {
    if (const int i = call.input_index(name); i >= 0) result.push_back(i);
  }
  return result;
}

bool all_floating(const OpCall& call) {
  return std::all_of(call.inputs.begin(), call.inputs.end(), [](const SpecPtr& s) {
    return !s || s->dtype() == at::kBool || at::isFloatingType(s->dtype()) || at::isComplexType(s->dtype());
  });
}

// No addend is bool: their sum is another operator (or).
bool no_bool(const OpCall& call, const Names& names) {
  const auto inputs = indices(call, names);
  return std::none_of(inputs.begin(), inputs.end(),
                      [&](int i) { return call.inputs[i] && call.inputs[i]->dtype() == at::kBool; });
}

// All tensors are of one integer type, and no number is of a wider kind.
bool same_integers(const OpCall& call) {
  std::optional<c10::ScalarType> dtype;
  for (const auto& s : call.inputs) {
    if (!s || s->dtype() == at::kBool) continue;
    if (!at::isIntegralType(s->dtype(), false) || (dtype && *dtype != s->dtype())) return false;
    dtype = s->dtype();
  }
  return dtype && std::none_of(call.args.begin(), call.args.end(),
                               [](const c10::IValue& v) { return v.isDouble() || v.isComplexDouble(); });
}

}  // namespace

const Names& value_free_scalars() {
  static const auto* const names =
      new Names{"self",           "other",   "alpha",  "beta",   "value",     "exponent", "min", "max",
                "min_val",        "max_val", "lambd",  "weight", "threshold", "scale",    "n",   "eps",
                "input_scale",    "nan",     "posinf", "neginf", "lower",     "upper",    "p",   "decimals",
                "negative_slope", "x"};
  return *names;
}

OpRule pointwise_op(PointwisePartials partials) {
  OpRule rule = factor_op([partials = std::move(partials)](const OpCall& call) {
    FactorRule factors = pointwise(call, static_cast<int>(call.schema().returns().size()));
    if (!all_floating(call) && !(partials.integers && same_integers(call))) return factors;
    for (const auto& term : partials.terms) {
      if (!no_bool(call, term)) return factors;
      if (auto inputs = indices(call, term); !inputs.empty()) factors.terms.push_back(std::move(inputs));
    }
    for (const auto& pass : partials.passes) {
      if (auto inputs = indices(call, pass.arguments); !inputs.empty()) {
        factors.passthroughs.push_back({std::move(inputs), pass.in, pass.out});
      }
    }
    return factors;
  });
  rule.value_free = value_free_scalars();
  return rule;
}

void register_pointwise_rules(RuleRegistry& registry) {
  registry.set_default_pointwise(pointwise_op());
  register_copy_rules(registry);
  register_linear_rules(registry);
  register_untagged_pointwise(registry);
  register_foreach_handlers();
}

}  // namespace dtensor
