// Factories with out=: zeros, ones and full fill the local tensors in place. The others run without a rule: they read
// no tensor, so nothing moves.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// `size` comes first, `out` last. If that has no elements the operator itself resizes it.
void fill(const c10::OperatorHandle& op, Stack& stack, const c10::Scalar& value) {
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  at::Tensor out = args.back().toTensor();
  const auto size = args.front().toDimVector();
  if (out.sizes() != c10::IntArrayRef(size)) {
    TORCH_CHECK_NOT_IMPLEMENTED(out.numel() == 0, c10::toString(op.operator_name()), ": argument 'out' has shape ",
                                out.sizes(), " and the result ", c10::IntArrayRef(size),
                                ". A distributed tensor keeps its size: pass one of the "
                                "right size, or use the form that returns a new tensor.");
    return dispatch_by_rule(op, stack);
  }
  torch::jit::drop(stack, args.size());
  out.fill_(value);
  stack.emplace_back(std::move(out));
}

void zeros_out(const c10::OperatorHandle& op, Stack& stack) { fill(op, stack, 0); }
void ones_out(const c10::OperatorHandle& op, Stack& stack) { fill(op, stack, 1); }
void full_out(const c10::OperatorHandle& op, Stack& stack) {
  fill(op, stack, torch::jit::peek(stack, 1, 3).toScalar());
}

}  // namespace

const RuleFamily factory_out_handlers("factory_out", [](RuleRegistry& registry) {
  registry.add_handler("aten::zeros.out", zeros_out);
  registry.add_handler("aten::ones.out", ones_out);
  registry.add_handler("aten::full.out", full_out);
});

}  // namespace dtensor::internal
