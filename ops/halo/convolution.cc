// Convolutions where the spatial dims are sharded: each rank fetches the halo that its windows reach, and the layout
// stays. A transposed one fetches the elements that reach the rank's part of the result. Batch and channels may be
// split by other mesh dims at the same time.
#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <array>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/box_convolution.h"
#include "ops/halo/boxes.h"
#include "ops/halo/decision.h"
#include "ops/support/arguments.h"
#include "plan/largest_part.h"
#include "plan/redistribution_cost.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The layouts of the inputs and the result on each rank.
struct Layouts {
  Placements input, weight, bias, output;
  Placements grad_input, grad_weight, grad_bias;
};

Layouts layouts_of(const Spec& input, const Spec& weight, const Convolution& c) {
  Layouts l;
  const int64_t in_dim = c.transposed ? 0 : 1, out_dim = 1 - in_dim;  // of the weight
  const bool is_grouped = c.groups > 1;
  const auto add = [&](Placement in, Placement w, Placement b, Placement out, Placement gi, Placement gw,
                       Placement gb) {
    l.input.push_back(in);
    l.weight.push_back(w);
    l.bias.push_back(b);
    l.output.push_back(out);
    l.grad_input.push_back(gi);
    l.grad_weight.push_back(gw);
    l.grad_bias.push_back(gb);
  };
  const Placement whole = Replicate();
  for (size_t m = 0; m < input.placements().size(); ++m) {
    const Placement &in = input.placements()[m], &w = weight.placements()[m];
    if (in.is_sharded() && in.dim() != 1) {  // batch, or what windows slide along
      add(in, whole, whole, in, in, Partial(), Partial());
    } else if (in.is_shard() && !is_grouped) {  // of the input channels, which are summed over; the bias is added once
      add(in, Shard(in_dim), Partial(), Partial(), in, Shard(in_dim), whole);
    } else if (w.is_shard() && w.dim() == out_dim && !is_grouped) {
      add(whole, Shard(out_dim), Shard(0), Shard(1), Partial(), Shard(out_dim), Shard(0));
    } else {
      add(whole, whole, whole, whole, whole, whole, whole);
    }
  }
  return l;
}

// A call that halos apply to.
struct ConvolutionCall {
  Convolution convolution;
  Layouts layouts;
  SpecPtr source;  // the input in the layout of the computation
};

std::optional<ConvolutionCall> call_of(const Arguments& args) {
  const at::Tensor input = args.tensor("input"), weight = args.tensor("weight");
  if (args.out().defined() || !is_dtensor(input) || !is_dtensor(weight) || input.numel() == 0) return std::nullopt;
  const Spec &in = *spec_of(input), &w = *spec_of(weight);
  auto convolution = convolution_of(args);
  if (in.mesh() != w.mesh() || !convolution || cutting_mesh_dims(in, convolution->dims()).empty() ||
      !has_runs_along(in, convolution->dims()))
    return std::nullopt;
  ConvolutionCall call{*std::move(convolution), {}, nullptr};
  call.layouts = layouts_of(in, w, call.convolution);
  call.source = in.with_placements(call.layouts.input);
  return call;
}

// FLOP of `gradients` convolutions (1: forward) on a rank with `places` multiplications by its part of the weight:
// windows, or elements that a transposed one spreads.
double flops_of(const Shape& places, const Shape& weight, int gradients) {
  const auto numel = [](auto begin, auto end) { return static_cast<double>(c10::multiply_integers(begin, end)); };
  return 2.0 * gradients * static_cast<double>(places[0]) * numel(places.begin() + 2, places.end()) *
         numel(weight.begin(), weight.end());
}

struct Work {
  double of_rank = 0, of_one = 0;
};
Work work_of(const ConvolutionCall& call, const Shape& weight, int gradients = 1) {
  const Convolution& c = call.convolution;
  const Shape places = c.transposed ? call.source->sizes() : c.output_sizes(call.source->sizes());
  const auto& mesh_shape = call.source->mesh().shape();
  return {flops_of(largest_part(places, mesh_shape, c.transposed ? call.layouts.input : call.layouts.output),
                   largest_part(weight, mesh_shape, call.layouts.weight), gradients),
          flops_of(places, weight, gradients)};
}

double seconds_to(const at::Tensor& t, const Placements& to) {
  return t.defined() && spec_of(t)->placements() != to ? seconds_to_move(spec_of(t), to) : 0;
}

// Redistributes an argument to the layout of the computation. `weight`: of the call.
at::Tensor redistributed(const c10::OperatorHandle& op, const at::Tensor& t, const Placements& to, const char* name,
                         const at::Tensor& weight) {
  if (!t.defined()) return t;
  return redistribute_below_autograd(t, to, call_cause(op, name, {t, weight}));
}

void report(const c10::OperatorHandle& op, const at::Tensor& weight, const Work& work) {
  const CommCause cause = call_cause(op, "", weight);
  report_flops(cause.op, cause.module_path, *spec_of(weight), work.of_rank, work.of_one);
}

// Plain weights, where they count as replicated.
void replicate_plain_weights(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor input = args.tensor("input");
  if (!is_dtensor(input) || !plain_is_replicated()) return;
  for (const char* name : {"weight", "bias"}) {
    const at::Tensor t = optional_tensor(args[name]);
    if (t.defined() && !is_dtensor(t)) args.set(name, replicate_plain(t, spec_of(input)->mesh()));
  }
}

const at::Tensor& local_if_defined(const at::Tensor& t, size_t i) {
  static const at::Tensor none;
  return t.defined() ? meta_for_read(t).locals[i] : none;
}

void convolution(const c10::OperatorHandle& op, Stack& stack) {
  replicate_plain_weights(op, stack);
  const Arguments args(op, stack);
  const auto call = call_of(args);
  const at::Tensor bias_given = args["bias"].isNone() ? at::Tensor() : args.tensor("bias");
  if (!call || (bias_given.defined() && !is_dtensor(bias_given))) return dispatch_by_rule(op, stack);
  const at::Tensor input_given = args.tensor("input"), weight_given = args.tensor("weight");
  const Layouts& layouts = call->layouts;
  const Work work = work_of(*call, spec_of(weight_given)->sizes());
  const auto decision = decide_halo(op, stack, input_given, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr result = rule->outputs[0]->with_placements(layouts.output);
    const double more = seconds_to(input_given, layouts.input) + seconds_to(weight_given, layouts.weight) +
                        seconds_to(bias_given, layouts.bias);
    return HaloChoice{{call->source, result, call->convolution.halo_dims()}, result, more, work.of_rank};
  });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  const at::Tensor input = redistributed(op, input_given, layouts.input, "input", weight_given),
                   weight = redistributed(op, weight_given, layouts.weight, "weight", weight_given),
                   bias = redistributed(op, bias_given, layouts.bias, "bias", weight_given);
  RankTensors locals =
      boxes_of(*decision, input, call->convolution.box_key(), call_cause(op, "input", {input, weight_given}));
  {
    LocalGuard guard;
    for (size_t i = 0; i < locals.size(); ++i) {
      const LocalLayout part = decision->result->local_layout(static_cast<int64_t>(i));
      locals[i] = convolved(call->convolution, part, locals[i], local_if_defined(weight, i), local_if_defined(bias, i));
    }
  }
  report(op, weight_given, work);
  return_tensors(op, stack, {make_dtensor(decision->result, std::move(locals))});
}

void convolution_backward(const c10::OperatorHandle& op, Stack& stack) {
  replicate_plain_weights(op, stack);
  const Arguments args(op, stack);
  const auto call = call_of(args);
  const at::Tensor grad_given = args.tensor("grad_output");
  if (!call || !is_dtensor(grad_given)) return dispatch_by_rule(op, stack);
  const at::Tensor input_given = args.tensor("input"), weight_given = args.tensor("weight");
  const Layouts& layouts = call->layouts;
  const Placements of_grad = without_partials(layouts.output);
  std::array<bool, 3> mask{};
  for (size_t k = 0; k < 3; ++k) mask[k] = args["output_mask"].toBoolList().get(k);
  const int products = int{mask[0]} + int{mask[1]};
  const Work work = work_of(*call, spec_of(weight_given)->sizes(), products);
  const auto decision = decide_halo(
      op, stack, mask[1] ? input_given : at::Tensor(), [&](const Decision* rule) -> std::optional<HaloChoice> {
        const SpecPtr grad_input = rule != nullptr && rule->outputs[0]
                                       ? rule->outputs[0]->with_placements(layouts.grad_input)
                                       : call->source->with_placements(layouts.grad_input);
        const SpecPtr windows = spec_of(grad_given)->with_placements(of_grad);
        const double more = seconds_to(grad_given, of_grad) + seconds_to(weight_given, layouts.weight) +
                            (mask[1] ? seconds_to(input_given, layouts.input) : 0);
        return HaloChoice{{call->source, windows, call->convolution.halo_dims()}, grad_input, more, work.of_rank};
      });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  const HaloPlan& plan = *decision->plan;
  const at::Tensor grad = redistributed(op, grad_given, of_grad, "grad_output", weight_given),
                   weight = redistributed(op, weight_given, layouts.weight, "weight", weight_given);
  const auto& grads = meta_for_read(grad).locals;
  RankTensors boxes;
  if (mask[1]) {
    const at::Tensor input = redistributed(op, input_given, layouts.input, "input", weight_given);
    boxes = boxes_of(*decision, input, call->convolution.box_key(), call_cause(op, "input", {input, weight_given}));
  } else {
    LocalGuard guard;  // only its sizes matter
    for (size_t i = 0; i < grads.size(); ++i) boxes.push_back(grads[i].new_zeros(plan.ranks[i].wanted));
  }
  std::array<RankTensors, 3> locals;
  {
    LocalGuard guard;
    for (size_t i = 0; i < boxes.size(); ++i) {
      const LocalLayout part = spec_of(grad)->local_layout(static_cast<int64_t>(i));
      const auto of_rank = gradients(call->convolution, part, grads[i], boxes[i], local_if_defined(weight, i), mask);
      for (size_t k = 0; k < 3; ++k) locals[k].push_back(of_rank[k]);
      boxes[i].reset();
    }
  }
  report(op, weight_given, work);
  std::array<at::Tensor, 3> results;
  if (mask[0]) {
    results[0] = make_dtensor(decision->result, back_from_boxes(plan, std::move(locals[0]),
                                                                call_cause(op, "grad_output", {grad, weight_given})));
  }
  const SpecPtr w = spec_of(weight_given);
  if (mask[1]) results[1] = make_dtensor(w->with_placements(layouts.grad_weight), std::move(locals[1]));
  if (mask[2]) {
    const std::vector<int64_t> channels = {call->convolution.channels};
    results[2] = make_dtensor(Spec::get(w->mesh(), layouts.grad_bias, channels, w->dtype()), std::move(locals[2]));
  }
  return_tensors(op, stack, {results.begin(), results.end()});
}

}  // namespace

const RuleFamily halo_convolution_handlers("halo_convolution", [](RuleRegistry& registry) {
  registry.add_handler("aten::convolution", convolution);
  registry.add_handler("aten::convolution_backward", convolution_backward);
});

}  // namespace dtensor::internal
