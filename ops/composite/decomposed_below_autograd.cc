// Operators that ATen implements by other operators: that code also runs on distributed tensors, whose pieces have
// rules. ATen decomposes them below autograd, since their gradients have formulas of their own.
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/stack.h>

#include "dtensor/dispatch/composite_op_scope.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

void run_pieces(const c10::OperatorHandle& op, Stack& stack) {
  const CompositeOpScope inside(op, torch::jit::last(stack, op.schema().arguments().size()));
  const auto key = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)
                       ? c10::DispatchKey::CompositeExplicitAutograd
                       : c10::DispatchKey::CompositeExplicitAutogradNonFunctional;
  op.callBoxedForDispatchKey(key, stack);
}

// ATen copies the memory of `self`, which a rank may not have.
void as_strided_scatter(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self"), src = args.tensor("src");
  const at::Tensor result = at::clone(self);
  at::as_strided(result, args["size"].toIntVector(), args["stride"].toIntVector(),
                 args["storage_offset"].toOptional<int64_t>().value_or(0))
      .copy_(src);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
}

// ATen's own code allocates the result before its layout is known.
void stack_tensors(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor result = at::stack(args["tensors"].toTensorVector(), args["dim"].toInt());
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
}

}  // namespace

const RuleFamily decomposed_handlers("decomposed", [](RuleRegistry& registry) {
  for (const char* op :
       {"aten::_chunk_cat", "aten::_conj_copy", "aten::_neg_view_copy", "aten::_unsafe_masked_index",
        "aten::_unsafe_masked_index_put_accumulate", "aten::as_strided_copy", "aten::block_diag",
        "aten::linspace.Scalar_Tensor", "aten::linspace.Tensor_Scalar", "aten::linspace.Tensor_Tensor",
        "aten::logspace.Scalar_Tensor", "aten::logspace.Tensor_Scalar", "aten::logspace.Tensor_Tensor", "aten::rot90"})
    registry.add_handler(op, run_pieces);
  registry.add_handler("aten::_stack", stack_tensors);
  registry.add_handler("aten::as_strided_scatter", as_strided_scatter);
});

}  // namespace dtensor::internal
