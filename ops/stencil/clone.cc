// A clone keeps the declared ghost width and the ghost regions of the tensor: a stencil that writes its next step to a
// clone of the grid fetches the borders only once.
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/tensor/representation.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

void clone(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor();
  dispatch_by_rule(op, stack);
  const at::Tensor& copy = torch::jit::peek(stack, 0, 1).toTensor();
  set_ghost_width(copy, ghost_width(self));
  if (spec_of(copy)->placements() != spec_of(self)->placements()) return;
  for (const bool periodic : {false, true}) {
    if (const auto region = cached_ghost_region(self, periodic)) cache_ghost_region(copy, *region);
  }
}

}  // namespace

const RuleFamily clone_handlers("clone", [](RuleRegistry& registry) { registry.add_handler("aten::clone", clone); });

}  // namespace dtensor::internal
