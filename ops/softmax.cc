// Softmax along one dim. All other dims may be split freely. Where the dim itself is split over ranks (class scores of
// a vocabulary-parallel head), it stays so: the ranks exchange one maximum and one sum per row instead of the scores.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/sum.h>

#include "dtensor/extend/dispatch.h"
#include "dtensor/extend/op_info.h"
#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/reduced_forms.h"
#include "dtensor/extend/representation.h"
#include "ops/meta_tensor.h"
#include "ops/rank_summaries.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

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

// ---- The dim is split ----

bool is_split_along(const at::Tensor& t, int64_t dim) { return t.dim() > 0 && is_split(t, {wrap_dim(dim, t.dim())}); }

// The ranks' results per row, reduced.
at::Tensor reduced(const at::Tensor& t, const c10::OperatorHandle& op, const char* what) {
  return redistribute_below_autograd(
      t, without_partials(spec_of(t)->placements()),
      {c10::toString(op.operator_name()), what, module_of(peek_meta(t)), /*implicit=*/true});
}

bool is_half(c10::ScalarType t) { return t == at::kHalf || t == at::kBFloat16; }

// _softmax, _log_softmax(self, dim, half_to_float).
template <bool kLog>
void softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  const at::Tensor self = args[0].toTensor();
  const int64_t dim = args[1].toInt();
  if (op.schema().arguments().size() != 3 || !is_split_along(self, dim))
    return dispatch_by_rule(op, stack);  // out=: by the rule
  const at::ScalarType dtype = args[2].toBool() ? at::kFloat : self.scalar_type();
  const at::Tensor x = (is_half(self.scalar_type()) ? self.to(at::kFloat) : self).contiguous();
  const at::Tensor shifted = x - reduced(x.amax({dim}, true), op, "max");
  const at::Tensor powers = shifted.exp();
  const at::Tensor sums = reduced(powers.sum({dim}, true), op, "sum");
  torch::jit::drop(stack, 3);
  stack.emplace_back((kLog ? shifted - sums.log() : powers / sums).to(dtype));
}

// _softmax_backward_data, _log_softmax_backward_data(grad_output, output, dim, input_dtype).
template <bool kLog>
void softmax_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  at::Tensor grad = args[0].toTensor(), output = args[1].toTensor();
  const int64_t dim = args[2].toInt();
  if (op.schema().arguments().size() != 4 || !is_split_along(output, dim) || !is_dtensor(grad) ||
      spec_of(grad)->has_partial())
    return dispatch_by_rule(op, stack);
  const at::ScalarType dtype = args[3].toScalarType();
  at::Tensor sums = kLog ? known_sums(grad, wrap_dim(dim, grad.dim())) : at::Tensor();
  if (is_half(output.scalar_type())) grad = grad.to(at::kFloat), output = output.to(at::kFloat);
  torch::jit::drop(stack, 4);
  const at::Tensor weighted = kLog ? grad : grad * output;
  if (!sums.defined()) sums = reduced(weighted.sum({dim}, true), op, "sum");
  stack.emplace_back((kLog ? grad - output.exp() * sums : weighted - output * sums).to(dtype));
}

}  // namespace

const RuleFamily softmax_rules("softmax", [](RuleRegistry& registry) {
  for (const char* op : {"aten::_softmax", "aten::_log_softmax"}) registry.add(op, factor_op(softmax_rule));
  for (const char* op : {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}) {
    registry.add(op, factor_op(softmax_backward_rule));
  }
  registry.add_handler("aten::_softmax", softmax<false>);
  registry.add_handler("aten::_log_softmax", softmax<true>);
  registry.add_handler("aten::_softmax_backward_data", softmax_backward<false>);
  registry.add_handler("aten::_log_softmax_backward_data", softmax_backward<true>);
  OpRule safe = factor_op(softmax_rule);
  safe.metas = safe_softmax_metas;
  registry.add("aten::_safe_softmax", std::move(safe));
});

}  // namespace dtensor
