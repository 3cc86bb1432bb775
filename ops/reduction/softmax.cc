// Softmax along one dim. All other dims may be split freely. Where the dim itself is split over ranks (class scores of
// a vocabulary-parallel head), it stays so: the ranks exchange one maximum and one sum per row instead of the scores,
// in one collective.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/sum.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/combine_summaries.h"
#include "ops/reduction/moments.h"
#include "ops/reduction/rank_summaries.h"
#include "ops/reduction/split_rows.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// Inputs and results have the same shape.
FactorRule softmax_rule(const OpCall& call) {
  FactorRule rule = pointwise(call);
  const auto ndim = static_cast<int64_t>(rule.outputs[0].size());
  if (ndim > 0) rule.need_replication = {static_cast<int>(wrap_dim(call.get_int("dim"), ndim))};
  return rule;
}

FactorRule softmax_backward_rule(const OpCall& call) {
  FactorRule rule = softmax_rule(call);
  rule.terms = {{call.input_index("grad_output")}};
  return rule;
}

// Scores of classes, in every input.
OpRule on_classes(OpRule rule) {
  rule.class_dim = [](const OpCall& call, int k) -> std::optional<int64_t> {
    return wrap_dim(call.get_int("dim"), static_cast<int64_t>(call.inputs[k]->ndim()));
  };
  return rule;
}

OutputMetas safe_softmax_metas(const OpCall& call) {
  const Spec& self = *call.input("self");
  const auto& dtype = call.arg("dtype");
  return metas_of({meta_tensor(self).new_empty(self.sizes(), dtype.isNone() ? self.dtype() : dtype.toScalarType())});
}

// ---- The dim is split ----

bool is_split_along(const at::Tensor& t, int64_t dim) { return t.dim() > 0 && is_split(t, {wrap_dim(dim, t.dim())}); }

// A rank's summary of a row: its largest element, and the sum of exp(element - largest). A part whose elements are all
// -inf has a sum of 0.
SummaryRequest exponentials(int64_t dim, c10::ScalarType dtype) {
  SummaryRequest request;
  request.dims = {dim};
  request.dtypes = {dtype, dtype};
  request.count = one_of_elements({dim});
  request.summarize = [dim](const at::Tensor& local, const LocalLayout&, int64_t) {
    const at::Tensor largest = local.amax({dim}, true);
    const at::Tensor base = largest.masked_fill(largest == -std::numeric_limits<double>::infinity(), 0);
    return std::vector<at::Tensor>{largest, (local - base).exp_().sum({dim}, true)};
  };
  return request;
}

// The largest element of the whole row, and the sum relative to it.
Combination combined_exponentials(c10::ScalarType dtype) {
  Combination combination;
  combination.dtypes = {dtype, dtype};
  combination.combine = [](const auto& columns, const auto&, const auto&) {
    const at::Tensor largest = columns[0].amax(0);
    return std::vector<at::Tensor>{largest, ((columns[0] - largest).exp_() * columns[1]).sum(0)};
  };
  return combination;
}

// _softmax, _log_softmax(self, dim, half_to_float).
template <bool kLog>
void softmax(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  const at::Tensor self = args[0].toTensor();
  if (op.schema().arguments().size() != 3 || !is_split_along(self, args[1].toInt()))
    return dispatch_by_rule(op, stack);  // out=: by the rule
  const int64_t dim = wrap_dim(args[1].toInt(), self.dim());
  const at::ScalarType dtype = args[2].toBool() ? at::kFloat : self.scalar_type();
  const SummaryRequest request = exponentials(dim, widened(self.scalar_type()));
  const bool stays = kLog && current_dispatch_scope().hints.keep_class_shards;
  if (!stays && !are_fewer_bytes(self, request)) return dispatch_by_rule(op, stack);  // short rows are moved themselves
  const at::Tensor x = self.to(request.dtypes[0]).contiguous();
  const auto row =
      combine_summaries(x, request, combined_exponentials(request.dtypes[0]), call_cause(op, "self", self));
  const at::Tensor shifted = x - row[0];
  torch::jit::drop(stack, 3);
  stack.emplace_back((kLog ? shifted.sub_(row[1].log()) : shifted.exp_().div_(row[1])).to(dtype));
}

// Whether a mesh dim that splits `output` along `dim` splits `grad` along another dim, so that one of them has to move.
bool are_cut_differently(const at::Tensor& grad, const at::Tensor& output, int64_t dim) {
  const Spec &of_grad = *spec_of(grad), &of_output = *spec_of(output);
  for (int64_t m = 0; m < of_output.mesh().ndim(); ++m) {
    const Placement &g = of_grad.placements()[m], &p = of_output.placements()[m];
    if (of_output.mesh().size(m) > 1 && p.is_sharded_on(dim) && g.is_sharded() && g != p) return true;
  }
  return false;
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
  if (kLog && current_dispatch_scope().hints.keep_class_shards &&
      are_cut_differently(grad, output, wrap_dim(dim, output.dim())))
    return dispatch_by_rule(op, stack);  // reports it
  const at::ScalarType dtype = args[3].toScalarType();
  at::Tensor sums = kLog ? cached_sums(grad, wrap_dim(dim, grad.dim())) : at::Tensor();
  if (sums.defined() && reports_reuse()) report_reuse(call_cause(op, "grad_output", output), "sums", 0);
  const at::ScalarType computed = widened(output.scalar_type());
  if (computed != output.scalar_type()) grad = grad.to(computed), output = output.to(computed);
  torch::jit::drop(stack, 4);
  const at::Tensor weighted = kLog ? grad : grad * output;
  if (!sums.defined()) sums = reduced(weighted.sum({dim}, true), op, "sum");
  stack.emplace_back((kLog ? grad - output.exp() * sums : weighted - output * sums).to(dtype));
}

}  // namespace

const RuleFamily softmax_rules("softmax", [](RuleRegistry& registry) {
  registry.add("aten::_softmax", factor_op(softmax_rule));
  registry.add("aten::_softmax_backward_data", factor_op(softmax_backward_rule));
  registry.add("aten::_log_softmax", on_classes(factor_op(softmax_rule)));
  registry.add("aten::_log_softmax_backward_data", on_classes(factor_op(softmax_backward_rule)));
  registry.add_handler("aten::_softmax", softmax<false>);
  registry.add_handler("aten::_log_softmax", softmax<true>);
  registry.add_handler("aten::_softmax_backward_data", softmax_backward<false>);
  registry.add_handler("aten::_log_softmax_backward_data", softmax_backward<true>);
  OpRule safe = factor_op(softmax_rule);
  safe.metas = safe_softmax_metas;
  registry.add("aten::_safe_softmax", std::move(safe));
});

}  // namespace dtensor::internal
