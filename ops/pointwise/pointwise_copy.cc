// Copies, aliases, casts and fills: any Partial passes unchanged, unless a cast or a constant comes between.
#include <ATen/core/stack.h>
#include <ATen/ops/empty_like.h>

#include "ops/pointwise/pointwise.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/movement.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

OpRule identity() {
  return factor_op([](const OpCall& call) {
    FactorRule rule = pointwise(call);
    pass_all_partials(rule, {0});
    return rule;
  });
}

OpRule to_copy() {
  OpRule rule = factor_op([](const OpCall& call) {
    const auto own = call.mesh.world().device_type();
    const c10::IValue device = call.has_arg("device") ? call.arg("device") : c10::IValue();  // out= has none
    if (device.isDevice()) {
      TORCH_CHECK_NOT_IMPLEMENTED(!call.mesh.world().is_meta() || device.toDevice().is_meta(), call.name(),
                                  ": Cannot copy out of meta tensor; no data! Give the module memory with "
                                  "dtensor::to_empty(module), and fill it.");
      TORCH_CHECK_NOT_IMPLEMENTED(
          device.toDevice().type() == own, call.name(), ": a distributed tensor on ", call.mesh.to_string(),
          " stays on the devices of its mesh (", c10::DeviceTypeName(own, true), "); it cannot be moved to ",
          device.toDevice(),
          ". Take full_tensor() or to_local() and move that, or distribute over a mesh of such devices.");
    }
    FactorRule factors = pointwise(call);
    pass_all_partials(factors, {0});
    return factors;
  });
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    if (const auto device = call.op.schema().argumentIndexWithName("device")) {
      stack[*device] = c10::IValue();  // every rank's part stays where it is
    }
    call.op.callBoxed(stack);
  };
  return rule;
}

// self is overwritten by a Partial of the same kind, or by a replicated value: for an average, maximum or minimum every
// rank holds the value; for a sum or product one rank does, and the others 0 or 1.
void write_once(const LocalCall& call, torch::jit::Stack& stack) {
  hold_constant(call, stack, 1, share_of_constant(call, 0, takes_tensor(call, 1) ? 1 : -1));
  call.op.callBoxed(stack);
}

// copy(self, src), fill.Tensor(self, value).
OpRule copy_into() {
  OpRule rule = factor_op([](const OpCall& call) {
    FactorRule factors = pointwise(call);
    pass_all_partials(factors, {0, 1});
    pass_all_partials(factors, {0});
    return factors;
  });
  rule.local = write_once;
  return rule;
}

// A tensor overwritten with a replicated value may have been Partial of any kind, and become replicated.
std::vector<DimStrategy> whole_of_partial(const OpCall& call, int64_t mesh_dim) {
  if (mesh_dim < 0 || !call.inputs[0]->placements()[mesh_dim].is_partial()) return {};
  DimStrategy s{{Replicate()}, Placements(call.inputs.size())};
  s.inputs[0] = call.inputs[0]->placements()[mesh_dim];
  return {s};
}

OpRule overwriting(OpRule rule) {
  rule.per_dim = [per_dim = rule.per_dim](const OpCall& call, int64_t mesh_dim) {
    std::vector<DimStrategy> result = whole_of_partial(call, mesh_dim), others = per_dim(call, mesh_dim);
    result.insert(result.end(), others.begin(), others.end());
    return result;
  };
  return rule;
}

OpRule fill_scalar() {
  OpRule rule = overwriting(identity());
  rule.value_free = value_free_scalars();
  rule.local = write_once;
  return rule;
}

}  // namespace

const RuleFamily pointwise_copy_rules("pointwise_copy", [](RuleRegistry& registry) {
  registry.add(Names{"aten::clone", "aten::detach", "aten::alias", "aten::lift", "aten::lift_fresh", "aten::positive",
                     "aten::detach_copy", "aten::alias_copy", "aten::lift_fresh_copy", "aten::_fw_primal"},
               identity());
  registry.add("aten::_to_copy", to_copy());
  registry.add(Names{"aten::copy", "aten::copy_"}, copy_into());
  registry.add("aten::fill.Tensor", overwriting(copy_into()));
  OpRule zero = overwriting(identity());
  zero.metas = [](const OpCall& call) { return metas_of({at::empty_like(meta_tensor(*call.inputs[0]))}); };
  registry.add("aten::zero", zero);
  registry.add("aten::fill.Scalar", fill_scalar());
});

}  // namespace dtensor::internal
