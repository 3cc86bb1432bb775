// Elementwise operators that let Partials through: linear ones, sums with a number, which one rank alone adds, and
// monotone ones for maxima and minima.
#include <ATen/core/stack.h>

#include <algorithm>

#include "ops/pointwise/pointwise.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using Pass = PointwisePartials::Pass;
constexpr ReduceOp kSum = ReduceOp::kSum, kAvg = ReduceOp::kAvg, kMin = ReduceOp::kMin, kMax = ReduceOp::kMax;

// Linear in one argument, with the others replicated: grad_output in the backward of elementwise operators.
const std::vector<std::pair<std::string, std::string>>& linear_in_one() {
  static const auto* const table = new std::vector<std::pair<std::string, std::string>>{
      {"aten::deg2rad", "self"},
      {"aten::rad2deg", "self"},
      {"aten::_conj", "self"},
      {"aten::_neg_view", "self"},
      {"aten::conj_physical", "self"},
      {"aten::threshold_backward", "grad_output"},
      {"aten::gelu_backward", "grad_output"},
      {"aten::sigmoid_backward", "grad_output"},
      {"aten::tanh_backward", "grad_output"},
      {"aten::silu_backward", "grad_output"},
      {"aten::logit_backward", "grad_output"},
      {"aten::elu_backward", "grad_output"},
      {"aten::softplus_backward", "grad_output"},
      {"aten::leaky_relu_backward", "grad_output"},
      {"aten::hardshrink_backward", "grad_out"},
      {"aten::softshrink_backward", "grad_output"},
  };
  return *table;
}

// f(max_i x_i) = max_i f(x_i): non-decreasing on the whole line.
const Names& non_decreasing() {
  static const auto* const names = new Names{"aten::asinh",
                                             "aten::atan",
                                             "aten::ceil",
                                             "aten::erf",
                                             "aten::exp",
                                             "aten::exp2",
                                             "aten::expm1",
                                             "aten::floor",
                                             "aten::sigmoid",
                                             "aten::sinh",
                                             "aten::tanh",
                                             "aten::trunc",
                                             "aten::relu",
                                             "aten::round",
                                             "aten::clamp",
                                             "aten::hardsigmoid",
                                             "aten::relu6",
                                             "aten::hardshrink",
                                             "aten::softshrink",
                                             "aten::hardtanh",
                                             "aten::clamp_min",
                                             "aten::clamp_max",
                                             "aten::special_log_ndtr"};
  return *names;
}

PointwisePartials keeps_extremes(const Names& arguments) {
  return {{},
          PartialSemantics::kMonotone,
          {{arguments, kMax, kMax, PartialSemantics::kMonotone}, {arguments, kMin, kMin, PartialSemantics::kMonotone}}};
}

// maximum(x, c) and the like: non-decreasing in each argument; `own` is the kind of Partial that both may have at once.
// (Not fmax(): a nan on one rank would be lost to the others' numbers.)
OpRule monotone_in_both(std::optional<ReduceOp> own) {
  PointwisePartials p = keeps_extremes({"self"});
  for (const auto& pass : keeps_extremes({"other"}).passes) p.passes.push_back(pass);
  if (own) p.passes.push_back({{"self", "other"}, *own, *own, PartialSemantics::kMonotone});
  return pointwise_op(p);
}

// For bools `and` is the minimum and `or` the maximum, given by `own`, and both are non-decreasing in each argument.
// For numbers nothing passes, also if the result is written to numbers: being 0 is not monotone.
OpRule of_bools(ReduceOp own) {
  PointwisePartials p{{}, PartialSemantics::kCopy, {{{"self", "other"}, own, own, PartialSemantics::kCopy}}};
  for (const ReduceOp op : {kMin, kMax}) {
    for (const char* argument : {"self", "other"}) p.passes.push_back({{argument}, op, op, PartialSemantics::kCopy});
  }
  OpRule rule = pointwise_op(p);
  rule.per_dim = [bools = rule.per_dim, numbers = pointwise_op().per_dim](const OpCall& call, int64_t mesh_dim) {
    const auto is_bool = [](const SpecPtr& input) { return !input || input->dtype() == at::kBool; };
    const bool all = std::all_of(call.inputs.begin(), call.inputs.end(), is_bool);
    return (all ? bools : numbers)(call, mesh_dim);
  };
  return rule;
}

// In self +- alpha * other, one is a sum and the other replicated, of any dtype: only the first rank adds it.
void add_once(const LocalCall& local, torch::jit::Stack& stack) {
  const bool tensor = takes_tensor(local, 1);
  const ConstantShare other = share_of_constant(local, 0, tensor ? 1 : -1);
  if (other == ConstantShare::kZero) {
    hold_constant(local, stack, 1, other);
    // Sets alpha: 0 times an infinity is not zero.
    if (tensor) stack[stack.size() - local.op.schema().arguments().size() + 2] = 1;
  }
  if (tensor) hold_constant(local, stack, 0, share_of_constant(local, 1, 0));
  local.op.callBoxed(stack);
}

// self +- alpha * other. An average, maximum or minimum stays one when the same is added on every rank.
OpRule addition() {
  OpRule rule = pointwise_op({{{"self"}, {"other"}},
                              PartialSemantics::kRing,
                              {{{"self"}, kSum, kSum, PartialSemantics::kOnce},
                               {{"other"}, kSum, kSum, PartialSemantics::kRing},
                               {{"self"}, kAvg, kAvg, PartialSemantics::kOnce},
                               {{"other"}, kAvg, kAvg, PartialSemantics::kReal},
                               {{"self"}, kMax, kMax, PartialSemantics::kShift},
                               {{"self"}, kMin, kMin, PartialSemantics::kShift}}});
  rule.local = add_once;
  rule.local_calls_operator = true;
  return rule;
}

OpRule add_scalar() {
  OpRule rule = pointwise_op({{},
                              PartialSemantics::kRing,
                              {{{"self"}, kSum, kSum, PartialSemantics::kOnce},
                               {{"self"}, kAvg, kAvg, PartialSemantics::kOnce},
                               {{"self"}, kMax, kMax, PartialSemantics::kShift},
                               {{"self"}, kMin, kMin, PartialSemantics::kShift}}});
  rule.local = add_once;
  rule.local_calls_operator = true;
  return rule;
}

// self, mask, value: elements of self or the value, which only one of the summed ranks adds.
OpRule masked_fill() {
  PointwisePartials p{{}, PartialSemantics::kCopy, copies({"self", "value"})};
  for (const auto& pass : copies({"self"})) p.passes.push_back(pass);
  OpRule rule = pointwise_op(p);
  rule.local = [](const LocalCall& local, torch::jit::Stack& stack) {
    hold_constant(local, stack, 2, share_of_constant(local, 0, takes_tensor(local, 2) ? 2 : -1));
    local.op.callBoxed(stack);
  };
  return rule;
}

OpRule division() { return pointwise_op({{{"self"}}, PartialSemantics::kReal, {}, {"other"}}); }

}  // namespace

const RuleFamily pointwise_linear_rules("pointwise_linear", [](RuleRegistry& registry) {
  for (const auto& [op, argument] : linear_in_one()) registry.add(op, pointwise_op({{{argument}}}));
  for (const auto& op : non_decreasing()) registry.add(op, pointwise_op(keeps_extremes({"self"})));
  registry.add(Names{"aten::div.Tensor", "aten::div.Scalar"}, division());
  registry.add(Names{"aten::deg2rad", "aten::rad2deg"},
               pointwise_op({{{"self"}}, PartialSemantics::kReal, keeps_extremes({"self"}).passes}));
  // Tensor bounds could be Partial themselves; then nothing passes.
  registry.add(Names{"aten::clamp.Tensor", "aten::clamp_min.Tensor", "aten::clamp_max.Tensor"},
               pointwise_op(keeps_extremes({"self"})));
  registry.add(Names{"aten::erfc", "aten::special_erfcx"},
               pointwise_op({{},
                             PartialSemantics::kMonotone,
                             {{{"self"}, kMax, kMin, PartialSemantics::kMonotone},
                              {{"self"}, kMin, kMax, PartialSemantics::kMonotone}}}));
  registry.add("aten::neg", pointwise_op({{{"self"}}, PartialSemantics::kRing}));
  registry.add(Names{"aten::add.Tensor", "aten::sub.Tensor"}, addition());
  registry.add(Names{"aten::add.Scalar", "aten::sub.Scalar"}, add_scalar());
  registry.add("aten::mul.Tensor", pointwise_op({{{"self", "other"}}, PartialSemantics::kRing}));
  registry.add("aten::mul.Scalar", pointwise_op({{{"self"}}, PartialSemantics::kRing}));
  registry.add("aten::addcmul", pointwise_op({{{"self"}, {"tensor1", "tensor2"}}, PartialSemantics::kRing}));
  registry.add("aten::addcdiv", pointwise_op({{{"self"}, {"tensor1"}}, PartialSemantics::kReal, {}, {"tensor2"}}));
  registry.add(Names{"aten::lerp.Scalar", "aten::lerp.Tensor"}, pointwise_op({{{"self"}, {"end"}}}));
  registry.add("aten::where.self", pointwise_op({{}, PartialSemantics::kCopy, copies({"self", "other"})}));
  registry.add(Names{"aten::masked_fill.Scalar", "aten::masked_fill.Tensor"}, masked_fill());
  registry.add(Names{"aten::maximum", "aten::max.other"}, monotone_in_both(kMax));
  registry.add(Names{"aten::minimum", "aten::min.other"}, monotone_in_both(kMin));
  registry.add("aten::logical_and", of_bools(kMin));
  registry.add("aten::logical_or", of_bools(kMax));
  registry.add(Names{"aten::logaddexp", "aten::logaddexp2"}, monotone_in_both(std::nullopt));
  // Without this, overloads of the reductions aten::max and aten::min would be found.
  registry.add("aten::max.out", monotone_in_both(kMax));
  registry.add("aten::min.out", monotone_in_both(kMin));
});

}  // namespace dtensor::internal
