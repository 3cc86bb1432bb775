// Operators on lists, as optimizers written in Python use them: one operator per tensor of the list, each with its own
// layout. That is what ATen's kernels for "any backend" do.
#include "dtensor/extend/op_info.h"
#include "ops/arguments.h"
#include "ops/plain_numbers.h"
#include "ops/pointwise.h"
#include "propagation/rule_registry.h"

namespace dtensor {
namespace {

void one_by_one(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd), "Operator ",
                              op.operator_name(), " does not have a form for distributed tensors.");
  // A tensor of numbers, one for each tensor of the list: ATen takes them out of it.
  Arguments args(op, stack);
  if (args["scalars"].isTensor()) args.set("scalars", plain_numbers(args.tensor("scalars"), op, "scalars"));
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
}

}  // namespace

const RuleFamily foreach_handlers("foreach", [](RuleRegistry& registry) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) == 0) registry.add_handler(name.name, one_by_one);
  }
});

}  // namespace dtensor
