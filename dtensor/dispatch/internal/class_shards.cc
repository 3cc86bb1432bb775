#include "dtensor/dispatch/internal/class_shards.h"

#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "comm/module_text.h"
#include "comm/scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_plan.h"
#include "plan/transfer/schedule.h"

namespace dtensor::internal {
namespace {

bool leaves_shards(const RedistributePlan& plan, int64_t class_dim) {
  if (plan.is_local()) return false;
  const Placements &from = plan.from.placements(), &to = plan.to.placements();
  for (int64_t m = 0; m < plan.from.mesh().ndim(); ++m) {
    if (plan.from.mesh().size(m) > 1 && from[m].is_sharded_on(class_dim) && to[m] != from[m]) return true;
  }
  return false;
}

}  // namespace

void check_class_shards(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                        const Decision& decision) {
  if (!in.context.scope.keep_class_shards || !decision.rule->class_dim) return;
  const OpCall call = make_call(info, in, args);
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const auto& plan = decision.input_plans[k];
    const auto class_dim = plan ? decision.rule->class_dim(call, static_cast<int>(k)) : std::nullopt;
    if (!class_dim || !leaves_shards(*plan, *class_dim)) continue;
    const std::string module = module_of_call(in.tensors);
    TORCH_CHECK(
        false, info.name, ": argument '", arg_name(info, in, static_cast<int>(k)),
        "' would leave its shards of classes, ", plan->tensor.bytes(), " bytes: ", to_string(*layout_change_of(*plan)),
        module.empty() ? "" : ", " + in_module(module, "in module '", "'"), in_backward() ? ", in backward" : "",
        ". LossParallel keeps scores and their gradients where they are: shard the classes by Shard, not by "
        "StridedShard, on mesh dims over which no argument is Partial or sharded along another dim, or redistribute() "
        "where you mean to.");
  }
}

}  // namespace dtensor::internal
