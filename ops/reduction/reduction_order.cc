// Reductions, scans and sorts whose dim is computed whole, since the ranks' partial results do not suffice. Every other
// dim may be sharded.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "ops/reduction/reduction.h"
#include "ops/support/meta_tensor.h"
#include "ops/views/blocks.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

int num_outputs(const OpCall& call) { return static_cast<int>(call.schema().returns().size()); }

// median, argmax, var, ...: the reduced dims are whole.
OpRule reduce_whole() {
  return factor_op([](const OpCall& call) {
    return reduction(call, 0, reduced_dims(call), keeps_dims(call), std::nullopt, num_outputs(call));
  });
}

// cumsum, sort, ...: the dim is whole, all others may be split. `linear`: in the first input.
OpRule along_dim(bool linear = false) {
  return factor_op([linear](const OpCall& call) {
    FactorRule rule = pointwise(call, num_outputs(call));
    rule.need_replication.push_back(static_cast<int>(wrap_dim(call.get_int("dim"), call.inputs[0]->ndim())));
    if (linear) rule.terms = {{0}};
    return rule;
  });
}

// The dim changes its number of elements.
OpRule resize_dim() {
  return factor_op([](const OpCall& call) {
    FactorRule rule = pointwise(call, num_outputs(call));
    const int dim = static_cast<int>(wrap_dim(call.get_int("dim"), call.inputs[0]->ndim()));
    rule.need_replication.push_back(dim);
    for (auto& output : rule.outputs) std::replace(output.begin(), output.end(), dim, kNoFactor);
    return rule;
  });
}

// This rank has no results: ATen would warn about the degrees of freedom.
void local_variance(const LocalCall& call, torch::jit::Stack& stack) {
  const auto sizes = call.outputs[0]->local_shape(call.i);
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  if (!empty || call.op.schema().arguments().back().is_out()) return call.op.callBoxed(stack);
  const at::Tensor self = stack[0].toTensor();
  stack.clear();
  for (const auto& output : call.outputs) {
    stack.emplace_back(at::empty(at::IntArrayRef(sizes), self.options().dtype(output->dtype())));
  }
}

c10::ScalarType real_dtype(const OpCall& call) { return c10::toRealValueType(call.inputs[0]->dtype()); }

OutputMetas value_and_index(const OpCall& call) { return reduction_metas(call, {call.inputs[0]->dtype(), at::kLong}); }
OpRule in_halves(OpRule rule) {
  halves_beside_each_other(rule);
  return rule;
}

OutputMetas as_self(const OpCall& call) { return metas_of({meta_tensor(*call.input("self"))}); }
OutputMetas floating(const OpCall& call) {
  const auto own = call.inputs[0]->dtype();
  const bool integral = at::isIntegralType(own, true);
  return reduction_metas(call, {integral ? c10::typeMetaToScalarType(c10::get_default_dtype()) : own});
}
OutputMetas same_shape(const OpCall& call) {
  return contiguous_metas(call.inputs[0]->sizes(), {call.inputs[0]->dtype()});
}
OutputMetas same_shape_and_index(const OpCall& call) {
  return contiguous_metas(call.inputs[0]->sizes(), {call.inputs[0]->dtype(), at::kLong});
}
OutputMetas as_variance(const OpCall& call) { return reduction_metas(call, {real_dtype(call)}); }
OutputMetas as_variance_and_mean(const OpCall& call) {
  return reduction_metas(call, {real_dtype(call), call.inputs[0]->dtype()});
}

}  // namespace

const RuleFamily reduction_order_rules("reduction_order", [](RuleRegistry& registry) {
  struct Entry {
    std::vector<std::string> ops;
    OpRule rule;
    OutputMetas (*metas)(const OpCall&);
  };
  const Entry table[] = {
      {{"aten::max.dim", "aten::max.dim_max", "aten::min.dim", "aten::min.dim_min"}, reduce_whole(), value_and_index},
      {{"aten::argmax", "aten::argmin"}, reduce_whole(), nullptr},
      {{"aten::logsumexp"}, reduce_whole(), floating},
      {{"aten::median", "aten::nanmedian"}, reduce_whole(), as_input},
      {{"aten::median.dim", "aten::median.dim_values", "aten::nanmedian.dim", "aten::nanmedian.dim_values",
        "aten::mode", "aten::kthvalue"},
       reduce_whole(),
       value_and_index},
      {{"aten::std.correction", "aten::var.correction"}, reduce_whole(), as_variance},
      {{"aten::std_mean.correction", "aten::var_mean.correction"}, reduce_whole(), as_variance_and_mean},
      {{"aten::cumsum"}, along_dim(/*linear=*/true), nullptr},
      {{"aten::cumprod", "aten::sort", "aten::sort.stable"}, along_dim(), nullptr},
      {{"aten::logcumsumexp"}, along_dim(), same_shape},
      {{"aten::cummax", "aten::cummin"}, along_dim(), same_shape_and_index},
      {{"aten::topk"}, resize_dim(), nullptr},
      {{"aten::glu"}, in_halves(resize_dim()), nullptr},
      {{"aten::glu_backward"}, in_halves(along_dim(/*linear=*/true)), as_self},
  };
  for (const auto& entry : table) {
    OpRule rule = entry.rule;
    if (entry.metas) rule.metas = entry.metas;
    if (entry.metas == as_variance || entry.metas == as_variance_and_mean) rule.local = local_variance;
    registry.add(entry.ops, rule);
  }
});

}  // namespace dtensor::internal
