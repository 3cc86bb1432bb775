// Copies, aliases, casts and fills: any Partial passes unchanged, unless a cast or a constant comes between.
#include <ATen/core/stack.h>

#include "ops/pointwise.h"

namespace dtensor {
namespace {

// Linear ones first, then those that need an order; products last.
constexpr ReduceOp kKinds[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

void pass_all(FactorRule& rule, const std::vector<int>& inputs, bool sums = true) {
  for (ReduceOp op : kKinds) {
    if (sums || (op != ReduceOp::kSum && op != ReduceOp::kProduct)) rule.passthroughs.push_back({inputs, op, op});
  }
}

OpRule identity() {
  return factor_op([](const OpCall& call) {
    FactorRule rule = pointwise(call);
    pass_all(rule, {0});
    return rule;
  });
}

// Casting the addends is casting the sum only between floating types (and from any type to itself).
bool cast_commutes(c10::ScalarType from, c10::ScalarType to) {
  const auto real_or_complex = [](c10::ScalarType t) { return at::isFloatingType(t) || at::isComplexType(t); };
  return from == to || (real_or_complex(from) && real_or_complex(to));
}

OpRule to_copy() {
  OpRule rule = factor_op([](const OpCall& call) {
    const Spec& self = *call.inputs[0];
    const auto own = call.mesh.world().device_type();
    if (const auto& device = call.arg("device"); device.isDevice()) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          device.toDevice().type() == own, call.name(), ": a distributed tensor on ", call.mesh.to_string(),
          " stays on the devices of its mesh (", c10::DeviceTypeName(own, true), "); it cannot be moved to ",
          device.toDevice(),
          ". Take full_tensor() or to_local() and move that, or distribute over a mesh of such devices.");
    }
    FactorRule factors = pointwise(call);
    const auto dtype = call.arg("dtype").isNone() ? self.dtype() : call.arg("dtype").toScalarType();
    if (cast_commutes(self.dtype(), dtype)) {
      pass_all(factors, {0});
      if (self.dtype() != dtype)
        factors.passthroughs.resize(at::isComplexType(self.dtype()) || at::isComplexType(dtype) ? 2 : 4);
    }
    return factors;
  });
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    const size_t device = *call.op.schema().argumentIndexWithName("device");
    stack[device] = c10::IValue();  // every rank's part stays where it is
    call.op.callBoxed(stack);
  };
  return rule;
}

// self, src: self's Partial is overwritten by a Partial of the same kind.
OpRule copy_into() {
  return factor_op([](const OpCall& call) {
    FactorRule rule = pointwise(call);
    if (cast_commutes(call.inputs[1]->dtype(), call.inputs[0]->dtype())) pass_all(rule, {0, 1});
    return rule;
  });
}

OpRule zero() {
  return factor_op([](const OpCall& call) {
    FactorRule rule = pointwise(call);
    pass_all(rule, {0});
    return rule;
  });
}

// The same value on every rank is the value of an average, a maximum and a minimum, but not of a sum.
OpRule fill_scalar() {
  OpRule rule = factor_op([](const OpCall& call) {
    FactorRule factors = pointwise(call);
    pass_all(factors, {0}, /*sums=*/false);
    return factors;
  });
  rule.value_free = value_free_scalars();
  return rule;
}

}  // namespace

void register_copy_rules(RuleRegistry& registry) {
  registry.add(Names{"aten::clone", "aten::detach", "aten::alias", "aten::lift", "aten::lift_fresh", "aten::positive",
                     "aten::detach_copy", "aten::alias_copy", "aten::lift_fresh_copy", "aten::_fw_primal"},
               identity());
  registry.add("aten::_to_copy", to_copy());
  registry.add(Names{"aten::copy", "aten::copy_", "aten::fill.Tensor"}, copy_into());
  registry.add("aten::zero", zero());
  registry.add("aten::fill.Scalar", fill_scalar());
}

}  // namespace dtensor
