// Losses: one number per element or row, or their sum or mean. A mean is a sum of the ranks' shares, each scaled by its
// part of the global count, so that uneven and empty shards are exact, and so are gradients. Losses that are not
// operators of their own (l1_loss, kl_div, ...) are composed of others.
#include "ops/loss/loss.h"

#include <ATen/ExpandUtils.h>

#include "absl/strings/match.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"
#include "propagation/shape_inference.h"

namespace dtensor::internal {
namespace {

constexpr const char* kElementwise[] = {"aten::mse_loss",
                                        "aten::smooth_l1_loss",
                                        "aten::huber_loss",
                                        "aten::binary_cross_entropy",
                                        "aten::binary_cross_entropy_with_logits",
                                        "aten::soft_margin_loss"};

constexpr const char* kElementwiseBackward[] = {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward",
                                                "aten::huber_loss_backward", "aten::binary_cross_entropy_backward",
                                                "aten::soft_margin_loss_backward"};

// Where the sizes differ, ATen's binary_cross_entropy drops dims of size 1 before it broadcasts, of which a part may
// have some that the whole tensor has not; the result has the shape of `self`.
bool drops_dims(const OpCall& call) {
  return absl::StartsWith(call.name(), "aten::binary_cross_entropy") &&
         !absl::StrContains(call.name(), "with_logits") && call.input("target")->sizes() != call.input("self")->sizes();
}

// Computed on whole tensors.
FactorRule whole(const OpCall& call, int64_t output_dims) {
  FactorRule rule;
  for (const SpecPtr& input : call.inputs) rule.inputs.emplace_back(input ? input->ndim() : 0, kNoFactor);
  rule.outputs = {std::vector<int>(output_dims, kNoFactor)};
  return rule;
}

FactorRule elementwise_rule(const OpCall& call) {
  if (drops_dims(call)) return whole(call, reduces(call) ? 0 : call.input("self")->ndim());
  FactorRule rule = pointwise(call);
  if (reduces(call)) {
    for (int factor : rule.outputs[0]) rule.contractions.push_back({factor, ReduceOp::kSum});
    rule.outputs[0].clear();
  }
  return rule;
}

FactorRule elementwise_backward_rule(const OpCall& call) {
  FactorRule rule = drops_dims(call) ? whole(call, call.input("self")->ndim()) : pointwise(call);
  rule.terms = {{call.input_index("grad_output")}};
  return rule;
}

// The first operand of ATen's formula, whose result's memory is reused. nullptr: all of them.
const char* first_operand(const OpCall& call) {
  if (call.has_arg("grad_output")) return nullptr;
  if (absl::StrContains(call.name(), "with_logits")) return "target";
  return absl::StrContains(call.name(), "huber_loss") || absl::StrContains(call.name(), "soft_margin_loss") ? "self"
                                                                                                            : nullptr;
}

OutputMetas elementwise_metas(const OpCall& call) {
  const at::Tensor self = meta_tensor(*call.input("self"));
  OutputMetas elementwise = infer_elementwise(call);
  if (!call.has_arg("grad_output") && reduces(call))
    return metas_of({self.new_empty({}, elementwise.tensors[0]->dtype)});
  for (const char* op : {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward"}) {
    if (call.name() == op) elementwise.tensors[0]->strides = row_major_strides(elementwise.tensors[0]->sizes);
  }
  if (drops_dims(call)) return metas_of({self.new_empty(self.sizes(), elementwise.tensors[0]->dtype)});
  const char* first = first_operand(call);
  if (first != nullptr && call.input(first)->sizes() != elementwise.tensors[0]->sizes) {  // its memory is too small
    elementwise.tensors[0]->strides = row_major_strides(elementwise.tensors[0]->sizes);
  } else if (first != nullptr) {
    OpCall alone = call;
    for (size_t i = 0; i < alone.inputs.size(); ++i) {
      if (static_cast<int>(i) != call.input_index(first)) alone.inputs[i] = nullptr;
    }
    elementwise.tensors[0]->strides = elementwise_strides(alone);
  }
  return elementwise;
}

double ratio(int64_t mine, int64_t global) {
  return mine == global ? 1.0 : static_cast<double>(mine) / static_cast<double>(global);
}

void elementwise_local(const LocalCall& local, torch::jit::Stack& stack) {
  const Arguments args(local.op, stack);
  double share = 1.0;  // of the elements that `self` and `target` broadcast to
  if (args["reduction"].toInt() == at::Reduction::Mean) {
    const auto mine = at::infer_size(args["self"].toTensor().sizes(), args["target"].toTensor().sizes());
    const auto global = at::infer_size(local.inputs[0]->sizes(), local.inputs[1]->sizes());
    share = ratio(c10::multiply_integers(mine), c10::multiply_integers(global));
  }
  local.op.callBoxed(stack);
  if (share == 1.0) return;
  // The mean of no elements is nan, but a share of zero of it must be 0.
  const at::Tensor mean = stack.back().toTensor();
  stack.back() = share == 0.0 ? mean.zero_() : mean.mul_(share);
}

void elementwise_backward_local(const LocalCall& local, torch::jit::Stack& stack) {
  Arguments args(local.op, stack);
  if (args["reduction"].toInt() == at::Reduction::Mean) {
    // ATen divides by the number of elements of `self`, even if `target` has more.
    const double share = ratio(args["self"].toTensor().numel(), local.inputs[1]->meta().numel());
    if (share != 1.0) args.set("grad_output", args["grad_output"].toTensor().mul(share));
  }
  local.op.callBoxed(stack);
}

}  // namespace

const RuleFamily loss_rules("loss", [](RuleRegistry& registry) {
  OpRule loss = factor_op(elementwise_rule);
  loss.metas = elementwise_metas;
  loss.local = elementwise_local;
  for (const char* op : kElementwise) registry.add(op, loss);
  OpRule gradient = factor_op(elementwise_backward_rule);
  gradient.metas = elementwise_metas;
  gradient.local = elementwise_backward_local;
  for (const char* op : kElementwiseBackward) registry.add(op, gradient);
});

}  // namespace dtensor::internal
