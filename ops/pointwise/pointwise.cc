#include "ops/pointwise/pointwise.h"

#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

std::vector<int> indices(const OpCall& call, const Names& names) {
  std::vector<int> result;
  for (const auto& name : names) {
    if (const int i = call.input_index(name); i >= 0) result.push_back(i);
  }
  return result;
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
  OpRule rule = factor_op([partials](const OpCall& call) {
    FactorRule factors = pointwise(call, static_cast<int>(call.schema().returns().size()));
    factors.maths = partials.maths;
    factors.divisors = partials.divisors;
    for (const auto& term : partials.terms) {
      if (auto inputs = indices(call, term); !inputs.empty()) factors.terms.push_back(std::move(inputs));
    }
    factors.passthroughs.reserve(partials.passes.size());
    const Names* names = nullptr;
    std::vector<int> inputs;
    for (const auto& pass : partials.passes) {
      if (names == nullptr || *names != pass.arguments) inputs = indices(call, pass.arguments);
      names = &pass.arguments;
      if (!inputs.empty()) factors.passthroughs.push_back({inputs, pass.in, pass.out, pass.maths});
    }
    return factors;
  });
  rule.flops = nullptr;  // no products: to find that out takes as long as the strategies
  rule.value_free = value_free_scalars();
  rule.divisors = partials.divisors;
  return rule;
}

std::vector<PointwisePartials::Pass> copies(const Names& arguments) {
  std::vector<PointwisePartials::Pass> result;
  // Linear ones first, then those that need an order; products last.
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    result.push_back({arguments, op, op, PartialSemantics::kCopy});
  }
  return result;
}

bool takes_tensor(const LocalCall& local, size_t a) {
  return local.op.schema().arguments()[a].type()->kind() == c10::TypeKind::TensorType;
}

ConstantShare share_of_constant(const LocalCall& local, int partial, int whole) {
  const Placements& placements = local.inputs[partial]->placements();
  for (int64_t d = 0; d < local.mesh.ndim(); ++d) {
    const Placement& p = placements[d];
    const ReduceOp op = p.reduce_op();
    if (!p.is_partial() || (op != ReduceOp::kSum && op != ReduceOp::kProduct && op != ReduceOp::kNorm2)) continue;
    if (whole >= 0 && local.inputs[whole]->placements()[d].is_partial()) continue;
    if (!local.outputs[0]->placements()[d].is_partial()) continue;  // overwritten, not added to
    if (local.mesh.local_coordinate(local.i)[d] == 0) continue;
    return op == ReduceOp::kProduct ? ConstantShare::kOne : ConstantShare::kZero;
  }
  return ConstantShare::kAll;
}

void hold_constant(const LocalCall& local, torch::jit::Stack& stack, size_t argument, ConstantShare share) {
  if (share == ConstantShare::kAll) return;
  c10::IValue& value = stack[stack.size() - local.op.schema().arguments().size() + argument];
  const int64_t number = share == ConstantShare::kOne;
  if (!value.isTensor()) {
    if (value.isBool()) {
      value = number != 0;
    } else if (value.isInt()) {
      value = number;
    } else if (value.isComplexDouble()) {
      value = c10::complex<double>(static_cast<double>(number));
    } else {
      value = static_cast<double>(number);
    }
    return;
  }
  const at::Tensor constant = value.toTensor();
  const bool wrapped = constant.unsafeGetTensorImpl()->is_wrapped_number();
  const at::Tensor held = number == 0 ? at::zeros_like(constant) : at::ones_like(constant);
  if (wrapped) held.unsafeGetTensorImpl()->set_wrapped_number(true);  // still takes part in type promotion as a number
  value = held;
}

const RuleFamily pointwise_rules("pointwise",
                                 [](RuleRegistry& registry) { registry.set_default_pointwise(pointwise_op()); });

}  // namespace dtensor::internal
