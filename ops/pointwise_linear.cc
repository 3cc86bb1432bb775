// Elementwise operators that let Partials through: linear ones, and monotone ones for maxima and minima.
#include "ops/pointwise.h"

namespace dtensor {
namespace {

using Pass = PointwisePartials::Pass;
constexpr ReduceOp kSum = ReduceOp::kSum, kAvg = ReduceOp::kAvg, kMin = ReduceOp::kMin, kMax = ReduceOp::kMax;

// Linear in one argument, the others whole: grad_output of the backward of anything elementwise.
const std::vector<std::pair<std::string, std::string>>& linear_in_one() {
  static const auto* const table = new std::vector<std::pair<std::string, std::string>>{
      {"aten::div.Tensor", "self"},
      {"aten::div.Scalar", "self"},
      {"aten::deg2rad", "self"},
      {"aten::rad2deg", "self"},
      {"aten::_conj", "self"},
      {"aten::_neg_view", "self"},
      {"aten::conj_physical", "self"},
      {"aten::_conj_physical", "self"},
      {"aten::special_xlog1py", "self"},
      {"aten::_masked_scale", "self"},
      {"aten::native_dropout_backward", "grad_output"},
      {"aten::threshold_backward", "grad_output"},
      {"aten::gelu_backward", "grad_output"},
      {"aten::sigmoid_backward", "grad_output"},
      {"aten::tanh_backward", "grad_output"},
      {"aten::silu_backward", "grad_output"},
      {"aten::mish_backward", "grad_output"},
      {"aten::logit_backward", "grad_output"},
      {"aten::elu_backward", "grad_output"},
      {"aten::softplus_backward", "grad_output"},
      {"aten::leaky_relu_backward", "grad_output"},
      {"aten::hardshrink_backward", "grad_out"},
      {"aten::softshrink_backward", "grad_output"},
      {"aten::hardsigmoid_backward", "grad_output"},
      {"aten::hardswish_backward", "grad_output"},
      {"aten::hardtanh_backward", "grad_output"},
      {"aten::log_sigmoid_backward", "grad_output"},
      {"aten::rrelu_with_noise_backward", "grad_output"},
  };
  return *table;
}

// f(max_i x_i) = max_i f(x_i): non-decreasing on the whole line.
const Names& non_decreasing() {
  static const auto* const names =
      new Names{"aten::asinh",      "aten::atan",     "aten::ceil",        "aten::erf",       "aten::exp",
                "aten::exp2",       "aten::expm1",    "aten::floor",       "aten::sgn",       "aten::sign",
                "aten::sigmoid",    "aten::sinh",     "aten::tanh",        "aten::trunc",     "aten::relu",
                "aten::round",      "aten::clamp",    "aten::hardsigmoid", "aten::relu6",     "aten::hardshrink",
                "aten::softshrink", "aten::hardtanh", "aten::clamp_min",   "aten::clamp_max", "aten::special_log_ndtr"};
  return *names;
}

PointwisePartials keeps_extremes(const Names& arguments) {
  return {{}, false, {{arguments, kMax, kMax}, {arguments, kMin, kMin}}};
}

// maximum(x, c) and the like: non-decreasing in each argument; `own` is what both may be at once.
OpRule monotone_in_both(std::optional<ReduceOp> own) {
  PointwisePartials p = {
      {}, false, {{{"self"}, kMax, kMax}, {{"other"}, kMax, kMax}, {{"self"}, kMin, kMin}, {{"other"}, kMin, kMin}}};
  if (own) p.passes.push_back({{"self", "other"}, *own, *own});
  return pointwise_op(p);
}

// self +- alpha * other. An average, maximum or minimum stays one when the same is added on every rank; a sum would
// count the addend once per rank.
OpRule addition() {
  return pointwise_op(
      {{{"self"}, {"other"}},
       true,
       {{{"self"}, kAvg, kAvg}, {{"other"}, kAvg, kAvg}, {{"self"}, kMax, kMax}, {{"self"}, kMin, kMin}}});
}

// Of the ranks whose addends make up a sum, the first one adds the number.
void add_scalar_once(const LocalCall& local, torch::jit::Stack& stack) {
  const auto& placements = local.inputs[0]->placements();
  for (int64_t d = 0; d < local.mesh.ndim(); ++d) {
    if (!placements[d].is_partial() || placements[d].reduce_op() != kSum ||
        local.mesh.local_coordinate(local.i)[d] == 0)
      continue;
    c10::IValue& number = stack[stack.size() - local.op.schema().arguments().size() + 1];
    number = number.isInt() ? c10::IValue(0) : number.isBool() ? c10::IValue(false) : c10::IValue(0.0);
    break;
  }
  local.op.callBoxed(stack);
}

OpRule add_scalar() {
  OpRule rule = pointwise_op(
      {{}, false, {{{"self"}, kSum, kSum}, {{"self"}, kAvg, kAvg}, {{"self"}, kMax, kMax}, {{"self"}, kMin, kMin}}});
  rule.local = add_scalar_once;
  return rule;
}

// Zeros and constants where the mask is: linear if the constant is 0; an average, maximum or minimum of equal values is
// that value anyway.
OpRule masked_fill_scalar() {
  OpRule rule = pointwise_op({{}, false, {{{"self"}, kAvg, kAvg}, {{"self"}, kMax, kMax}, {{"self"}, kMin, kMin}}});
  const OpRule with_zero = pointwise_op({{{"self"}}, true, {}});
  rule.per_dim = [other = rule.per_dim, with_zero](const OpCall& call, int64_t mesh_dim) {
    const auto& value = call.arg("value");
    const bool zero = (value.isInt() && value.toInt() == 0) || (value.isDouble() && value.toDouble() == 0) ||
                      (value.isBool() && !value.toBool());
    return zero ? with_zero.per_dim(call, mesh_dim) : other(call, mesh_dim);
  };
  rule.value_free = {};
  return rule;
}

}  // namespace

void register_linear_rules(RuleRegistry& registry) {
  for (const auto& [op, argument] : linear_in_one()) registry.add(op, pointwise_op({{{argument}}, false, {}}));
  for (const auto& op : non_decreasing()) registry.add(op, pointwise_op(keeps_extremes({"self"})));
  registry.add(Names{"aten::deg2rad", "aten::rad2deg"},
               pointwise_op({{{"self"}}, false, {{{"self"}, kMax, kMax}, {{"self"}, kMin, kMin}}}));
  // Bounds that are tensors could be Partial themselves; then nothing passes.
  registry.add(Names{"aten::clamp.Tensor", "aten::clamp_min.Tensor", "aten::clamp_max.Tensor"},
               pointwise_op(keeps_extremes({"self"})));
  registry.add(Names{"aten::erfc", "aten::special_erfcx"},
               pointwise_op({{}, false, {{{"self"}, kMax, kMin}, {{"self"}, kMin, kMax}}}));
  registry.add("aten::neg", pointwise_op({{{"self"}}, true, {}}));
  registry.add(Names{"aten::add.Tensor", "aten::sub.Tensor"}, addition());
  registry.add(Names{"aten::add.Scalar", "aten::sub.Scalar"}, add_scalar());
  registry.add("aten::mul.Tensor", pointwise_op({{{"self", "other"}}, true, {}}));
  registry.add("aten::mul.Scalar", pointwise_op({{{"self"}}, true, {}}));
  registry.add("aten::addcmul", pointwise_op({{{"self"}, {"tensor1", "tensor2"}}, true, {}}));
  registry.add("aten::addcdiv", pointwise_op({{{"self"}, {"tensor1"}}, false, {}}));
  registry.add(Names{"aten::lerp.Scalar", "aten::lerp.Tensor"}, pointwise_op({{{"self"}, {"end"}}, false, {}}));
  registry.add(
      "aten::where.self",
      pointwise_op({{{"self"}, {"other"}}, true, {{{"self", "other"}, kMax, kMax}, {{"self", "other"}, kMin, kMin}}}));
  registry.add("aten::masked_fill.Scalar", masked_fill_scalar());
  registry.add("aten::masked_fill.Tensor", pointwise_op({{{"self"}, {"value"}}, true, {}}));
  registry.add(Names{"aten::maximum", "aten::fmax", "aten::max.other"}, monotone_in_both(kMax));
  registry.add(Names{"aten::minimum", "aten::fmin", "aten::min.other"}, monotone_in_both(kMin));
  registry.add(Names{"aten::logaddexp", "aten::logaddexp2"}, monotone_in_both(std::nullopt));
  // Else these would be found as overloads of the reductions aten::max and aten::min.
  registry.add("aten::max.out", monotone_in_both(kMax));
  registry.add("aten::min.out", monotone_in_both(kMin));
}

}  // namespace dtensor
