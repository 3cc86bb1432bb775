// cross_entropy_loss() of logits whose classes are split over ranks (a vocabulary-parallel head). ATen composes it of
// log_softmax() and nll_loss(), which each make tensors of the logits' size; here it is one pass over the logits in
// forward and one in backward (class_split_cross_entropy.h).
//
// ATen's composite stays for everything else: whole classes, logits of more than two dims, strided shards of classes,
// rows too short for summaries (but in a LossParallel), forward-mode derivatives, and derivatives by probabilities or
// weights.
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/forward_mode.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/loss/class_split_cross_entropy.h"
#include "ops/reduction/rank_summaries.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::jit::Stack;
using CrossEntropyCallPtr = c10::intrusive_ptr<CrossEntropyCall>;

struct CrossEntropyFn : torch::autograd::Function<CrossEntropyFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self, const at::Tensor& target,
                            const std::optional<at::Tensor>& weight, CrossEntropyCallPtr call) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const CrossEntropyTensors in = brought_to_logits({self, target, weight.value_or(at::Tensor())}, *call);
    const CrossEntropyLoss loss = cross_entropy_loss(in, *call);
    report_bytes(call->op, in.spec().mesh(), in.spec().max_local_bytes());
    ctx->save_for_backward({self, in.target, in.weight, loss.max, loss.sum, loss.totals, loss.divisor});
    ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    ctx->set_materialize_grads(false);
    return loss.value;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor none;
    if (!grads[0].defined()) return {none, none, none, none};
    CrossEntropyCall call =
        *c10::static_intrusive_pointer_cast<CrossEntropyCall>(ctx->saved_data.at("call").toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const CrossEntropyTensors in{saved[0], saved[1], saved[2]};
    const CrossEntropyLoss loss{none, saved[3], saved[4], saved[5], saved[6]};
    const at::Tensor grad = distributed_gradient(grads[0], in.spec().mesh());
    if (call.module_path.empty()) call.module_path = module_of_call(grad);  // unknown if nothing listened in forward
    if (at::GradMode::is_enabled())
      return {differentiable_cross_entropy_gradient(grad, in, loss, call), none, none, none};
    report_bytes(call.op, in.spec().mesh(), 2 * in.spec().max_local_bytes());
    return {cross_entropy_gradient(grad, in, loss, call), none, none, none};
  }
};

bool is_constant_on(const at::Tensor& t, const DeviceMesh& mesh) {
  return is_dtensor(t) && spec_of(t)->mesh() == mesh && !t.requires_grad() && !has_tangent(t);
}

// Whether autocast applies to the call, below the handler.
bool has_autocast(const at::Tensor& t) {
  const auto key = t.is_cuda() ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  return !c10::impl::tls_is_dispatch_key_excluded(key);
}

// Whether there are kernels for each rank's part of such logits.
bool has_class_parts(const at::Tensor& self) {
  if (!is_dtensor(self) || self.dim() < 1 || self.dim() > 2 || !is_split(self, {self.dim() - 1})) return false;
  const Placements& placements = spec_of(self)->placements();
  const bool has_gaps = std::any_of(placements.begin(), placements.end(), [&](const Placement& p) {
    return p.is_strided_shard() && p.is_sharded_on(self.dim() - 1);
  });
  return !has_gaps && has_cross_entropy_kernel(self.device(), self.scalar_type()) && !has_tangent(self);
}

bool has_fitting_target(const CrossEntropyTensors& in, bool autocast) {
  if (!in.has_probabilities()) return in.target.sizes() == in.self.sizes().slice(0, in.self.dim() - 1);
  return in.target.sizes() == in.self.sizes() && in.target.scalar_type() == in.self.scalar_type() && !autocast;
}

bool has_fitting_weight(const CrossEntropyTensors& in, bool autocast) {
  if (!in.weight.defined()) return true;
  return in.weight.dim() == 1 && in.weight.size(0) == in.self.size(in.class_dim()) &&
         (autocast ? in.weight.is_floating_point() : in.weight.scalar_type() == in.self.scalar_type());
}

// Whether the summaries of a row have fewer bytes than its logits.
bool has_long_rows(const CrossEntropyTensors& in, const ClassPart& classes) {
  const int numbers = summary_numbers(in.weight.defined(), in.has_probabilities(), classes.label_smoothing);
  const auto bytes = static_cast<int64_t>(c10::elementSize(widened(in.self.scalar_type())));
  return in.ranks_per_row() * numbers * bytes < classes.num_classes * static_cast<int64_t>(in.self.element_size());
}

// Null: ATen's composite computes this call, or reports what is wrong with it.
CrossEntropyCallPtr class_split_call(const c10::OperatorHandle& op, const Arguments& args) {
  const CrossEntropyTensors in{args.tensor("self"), args.tensor("target"), optional_tensor(args["weight"])};
  if (!has_class_parts(in.self)) return {};
  const DeviceMesh& mesh = in.spec().mesh();
  if (!is_constant_on(in.target, mesh) || (in.weight.defined() && !is_constant_on(in.weight, mesh))) return {};
  auto call = c10::make_intrusive<CrossEntropyCall>();
  call->reduction = args["reduction"].toInt();
  call->classes = {0, 0, in.self.size(in.class_dim()), args["ignore_index"].toInt(), args.number("label_smoothing")};
  // Autocast computes the loss of half types in float, which the kernels do anyway.
  const bool autocast = c10::isReducedFloatingType(in.self.scalar_type()) && has_autocast(in.self);
  call->result_type = autocast ? at::kFloat : in.self.scalar_type();
  call->op = c10::toString(op.operator_name());
  call->module_path = module_of_call(in.self);
  const bool are_valid = call->reduction >= at::Reduction::None && call->reduction <= at::Reduction::Sum &&
                         call->classes.label_smoothing >= 0 && call->classes.label_smoothing <= 1;
  if (!are_valid || !has_fitting_target(in, autocast) || !has_fitting_weight(in, autocast)) return {};
  return current_dispatch_scope().hints.keep_class_shards || has_long_rows(in, call->classes) ? call
                                                                                              : CrossEntropyCallPtr();
}

// In a LossParallel: brings probabilities to the logits, so that the composite, which multiplies them by the logits'
// logarithms, does not move these.
void bring_probabilities(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor self = args.tensor("self"), target = args.tensor("target");
  if (!is_dtensor(target) || target.sizes() != self.sizes() || !is_split(self, {self.dim() == 1 ? 0 : 1})) return;
  if (spec_of(target)->mesh() != spec_of(self)->mesh()) return;  // the composite reports it
  const CommCause cause = call_cause(op, "target", self);
  args.set("target", redistribute_as(target, spec_of(self)->placements(), cause));
}

// cross_entropy_loss(self, target, weight, reduction, ignore_index, label_smoothing), above autograd.
void cross_entropy(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  CrossEntropyCallPtr call = class_split_call(op, args);
  if (!call && current_dispatch_scope().hints.keep_class_shards) bring_probabilities(op, stack);
  if (!call) return run_without_handler(op, stack);
  const at::Tensor self = args.tensor("self");
  keep_gradient_layout(self);
  return_tensors(op, stack,
                 {CrossEntropyFn::apply(self, args.tensor("target"), args["weight"].toOptional<at::Tensor>(), call)});
}

}  // namespace

const RuleFamily cross_entropy_handlers("cross_entropy", [](RuleRegistry& registry) {
  registry.add_handler("aten::cross_entropy_loss", cross_entropy);
});

}  // namespace dtensor::internal
