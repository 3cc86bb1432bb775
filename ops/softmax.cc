// Softmax along one dim, which is computed whole; all other dims may be split.
#include "ops/meta_tensor.h"
#include "ops/register.h"
#include "propagation/factor_rule.h"

namespace dtensor {
namespace {

// Inputs and results have the same shape.
FactorRule softmax_rule(const OpCall& call) {
  FactorRule rule = pointwise(call);
  const auto ndim = static_cast<int64_t>(rule.outputs[0].size());
  if (ndim > 0) rule.blocked = {static_cast<int>(wrap_dim(call.get_int("dim"), ndim))};
  return rule;
}

FactorRule softmax_backward_rule(const OpCall& call) {
  FactorRule rule = softmax_rule(call);
  rule.terms = {{call.input_index("grad_output")}};
  return rule;
}

OutputMetas safe_softmax_metas(const OpCall& call) {
  const Spec& self = *call.input("self");
  const auto& dtype = call.arg("dtype");
  return metas_of({meta_tensor(self).new_empty(self.sizes(), dtype.isNone() ? self.dtype() : dtype.toScalarType())});
}

}  // namespace

void register_softmax_rules(RuleRegistry& registry) {
  for (const char* op : {"aten::_softmax", "aten::_log_softmax"}) registry.add(op, factor_op(softmax_rule));
  for (const char* op : {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}) {
    registry.add(op, factor_op(softmax_backward_rule));
  }
  OpRule safe = factor_op(softmax_rule);
  safe.metas = safe_softmax_metas;
  registry.add("aten::_safe_softmax", std::move(safe));
}

}  // namespace dtensor
