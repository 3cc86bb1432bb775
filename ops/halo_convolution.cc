// Convolutions where ranks share the dims that windows slide along: each gets what its windows reach beyond its part,
// and the layout stays. Batch and channels may be split by other mesh dims meanwhile. Transposed ones go by the rule.
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "dtensor/extend/dispatch.h"
#include "dtensor/extend/gradient_layout.h"
#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/representation.h"
#include "ops/arguments.h"
#include "ops/halo_decision.h"
#include "ops/halo_exchange.h"
#include "ops/halo_windows.h"
#include "plan/redistribute_planner.h"
#include "propagation/rule_registry.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

struct Convolution {
  std::vector<WindowDim> windows;
  std::vector<int64_t> stride, dilation;
  int64_t groups = 1;

  std::vector<HaloDim> halo_dims() const {
    std::vector<HaloDim> dims;
    for (const WindowDim& w : windows) dims.push_back(w.halo_dim());
    return dims;
  }
  std::vector<int64_t> dims() const {
    std::vector<int64_t> list;
    for (const WindowDim& w : windows) list.push_back(w.dim);
    return list;
  }
};

int64_t along(const std::vector<int64_t>& list, size_t k) { return list.size() == 1 ? list[0] : list.at(k); }

// nullopt: a transposed one, or an error that the operator itself tells.
std::optional<Convolution> convolution_of(const Arguments& args) {
  const at::Tensor input = args.tensor("input"), weight = args.tensor("weight");
  if (args["transposed"].toBool() || input.dim() < 3 || input.dim() != weight.dim()) return std::nullopt;
  const auto stride = args["stride"].toIntVector(), padding = args["padding"].toIntVector(),
             dilation = args["dilation"].toIntVector();
  const auto n = static_cast<size_t>(input.dim() - 2);
  for (const size_t given : {stride.size(), padding.size(), dilation.size()}) {
    if (given != 1 && given != n) return std::nullopt;
  }
  Convolution c;
  c.groups = args["groups"].toInt();
  if (c.groups < 1 || input.size(1) != weight.size(1) * c.groups || weight.size(0) % c.groups != 0) return std::nullopt;
  for (size_t k = 0; k < n; ++k) {
    const auto d = static_cast<int64_t>(k + 2);
    WindowDim w{d, input.size(d), 0, weight.size(d), along(stride, k), along(padding, k), along(dilation, k)};
    if (w.size < 1 || w.stride < 1 || w.dilation < 1 || w.padding < 0) return std::nullopt;
    const int64_t room = w.elements + 2 * w.padding - w.span();
    if (room < 0) return std::nullopt;
    w.count = room / w.stride + 1;
    c.stride.push_back(w.stride);
    c.dilation.push_back(w.dilation);
    c.windows.push_back(w);
  }
  return c;
}

// What each rank computes with, and what it has then.
struct Layouts {
  Placements input, weight, bias, output;
  Placements grad_input, grad_weight, grad_bias;
};

Layouts layouts_of(const Spec& input, const Spec& weight, int64_t groups) {
  Layouts l;
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
    } else if (in.is_shard() && groups == 1) {  // of the channels that are added up; the bias counts once
      add(in, Shard(1), Partial(), Partial(), in, Shard(1), whole);
    } else if (w.is_shard() && w.dim() == 0 && groups == 1) {
      add(whole, Shard(0), Shard(0), Shard(1), Partial(), Shard(0), Shard(0));
    } else {
      add(whole, whole, whole, whole, whole, whole, whole);
    }
  }
  return l;
}

// The calls that halos are for, and what they are.
struct Call {
  Convolution convolution;
  Layouts layouts;
  SpecPtr source;  // the input as it is computed with
};

std::optional<Call> call_of(const Arguments& args) {
  const at::Tensor input = args.tensor("input"), weight = args.tensor("weight");
  if (args.out().defined() || !is_dtensor(input) || !is_dtensor(weight) || input.numel() == 0) return std::nullopt;
  const Spec &in = *spec_of(input), &w = *spec_of(weight);
  auto convolution = convolution_of(args);
  if (in.mesh() != w.mesh() || !convolution || cutting_mesh_dims(in, convolution->dims()).empty() ||
      !has_runs_of_windows(in, convolution->windows))
    return std::nullopt;
  Call call{*std::move(convolution), {}, nullptr};
  call.layouts = layouts_of(in, w, call.convolution.groups);
  call.source = in.with_placements(call.layouts.input);
  return call;
}

Shape output_sizes(const Call& call, int64_t channels) {
  Shape sizes = call.source->sizes();
  sizes[1] = channels;
  for (const WindowDim& w : call.convolution.windows) sizes[w.dim] = w.count;
  return sizes;
}

double seconds_to(const at::Tensor& t, const Placements& to) {
  return t.defined() && spec_of(t)->placements() != to ? cached_plan(spec_of(t), to)->seconds : 0;
}

// An argument as it is computed with.
at::Tensor brought(const c10::OperatorHandle& op, const at::Tensor& t, const Placements& to, const char* name) {
  if (!t.defined()) return t;
  if (is_leaf_parameter(t)) keep_gradient_layout(t);
  return redistribute_below_autograd(t, to, halo_cause(op, t, name));
}

const at::Tensor& local_of(const at::Tensor& t, size_t i) {
  static const at::Tensor none;
  return t.defined() ? meta_of(t).locals[i] : none;
}

at::IntArrayRef ref(const Shape& shape) { return {shape.data(), shape.size()}; }

at::Tensor convolved(const Convolution& c, const at::Tensor& box, const at::Tensor& weight, const at::Tensor& bias,
                     const Shape& sizes) {
  const std::vector<int64_t> none(c.windows.size(), 0);
  const auto numel = c10::multiply_integers(sizes.begin(), sizes.end());
  if (numel > 0 && box.size(1) > 0)
    return at::convolution(box, weight, bias, c.stride, none, c.dilation, false, none, c.groups);
  at::Tensor result = box.new_zeros(ref(sizes));
  if (numel == 0 || !bias.defined()) return result;
  std::vector<int64_t> shape(sizes.size(), 1);
  shape[1] = bias.size(0);
  return result.add_(bias.view(shape));
}

void convolution(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const auto call = call_of(args);
  const at::Tensor bias_given = args["bias"].isNone() ? at::Tensor() : args.tensor("bias");
  if (!call || (bias_given.defined() && !is_dtensor(bias_given))) return dispatch_by_rule(op, stack);
  const at::Tensor input_given = args.tensor("input"), weight_given = args.tensor("weight");
  const Layouts& layouts = call->layouts;
  const auto decision = decide_halo(op, stack, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const Shape sizes = output_sizes(*call, weight_given.size(0));
    const SpecPtr result = rule != nullptr
                               ? rule->outputs[0]->with_placements(layouts.output)
                               : Spec::get(call->source->mesh(), layouts.output, ref(sizes), call->source->dtype());
    const double more = seconds_to(input_given, layouts.input) + seconds_to(weight_given, layouts.weight) +
                        seconds_to(bias_given, layouts.bias);
    return HaloChoice{{call->source, result, call->convolution.halo_dims()}, result, more};
  });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  const at::Tensor input = brought(op, input_given, layouts.input, "input"),
                   weight = brought(op, weight_given, layouts.weight, "weight"),
                   bias = brought(op, bias_given, layouts.bias, "bias");
  RankTensors locals = fetch_halos(*decision->plan, meta_of(input).locals, 0, halo_cause(op, weight_given, "input"));
  {
    LocalGuard guard;
    for (size_t i = 0; i < locals.size(); ++i) {
      const Shape sizes = decision->result->local_shape(static_cast<int64_t>(i));
      locals[i] = convolved(call->convolution, locals[i], local_of(weight, i), local_of(bias, i), sizes);
    }
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(make_dtensor(decision->result, std::move(locals)));
}

// Of one rank: gradients of the box, the weight and the bias; undefined where nobody asks.
std::array<at::Tensor, 3> gradients(const Convolution& c, const at::Tensor& grad, const at::Tensor& box,
                                    const at::Tensor& weight, const std::array<bool, 3>& mask) {
  std::array<at::Tensor, 3> result;
  const int64_t channels = weight.size(0);
  if (grad.numel() > 0 && box.size(1) > 0) {
    const std::vector<int64_t> none(c.windows.size(), 0), bias_sizes = {channels};
    std::tie(result[0], result[1], result[2]) =
        at::convolution_backward(grad, box, weight, at::OptionalIntArrayRef(bias_sizes), c.stride, none, c.dilation,
                                 false, none, c.groups, mask);
    return result;
  }
  if (mask[0]) result[0] = at::zeros_like(box);
  if (mask[1]) result[1] = at::zeros_like(weight);
  if (mask[2]) {
    std::vector<int64_t> others(static_cast<size_t>(grad.dim()));
    for (size_t d = 0; d < others.size(); ++d) others[d] = static_cast<int64_t>(d);
    others.erase(others.begin() + 1);
    result[2] = grad.sum(others);
  }
  return result;
}

void convolution_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const auto call = call_of(args);
  const at::Tensor grad_given = args.tensor("grad_output");
  if (!call || !is_dtensor(grad_given)) return dispatch_by_rule(op, stack);
  const at::Tensor input_given = args.tensor("input"), weight_given = args.tensor("weight");
  const Layouts& layouts = call->layouts;
  const Placements of_grad = without_partials(layouts.output);
  std::array<bool, 3> mask{};
  for (size_t k = 0; k < 3; ++k) mask[k] = args["output_mask"].toBoolList().get(k);
  const auto decision = decide_halo(op, stack, [&](const Decision* rule) -> std::optional<HaloChoice> {
    const SpecPtr grad_input = rule != nullptr && rule->outputs[0]
                                   ? rule->outputs[0]->with_placements(layouts.grad_input)
                                   : call->source->with_placements(layouts.grad_input);
    const SpecPtr windows = spec_of(grad_given)->with_placements(of_grad);
    const double more = seconds_to(grad_given, of_grad) + seconds_to(weight_given, layouts.weight) +
                        (mask[1] ? seconds_to(input_given, layouts.input) : 0);
    return HaloChoice{{call->source, windows, call->convolution.halo_dims()}, grad_input, more};
  });
  if (!decision->plan) return dispatch_by_rule(op, stack);
  const HaloPlan& plan = *decision->plan;
  const at::Tensor grad = brought(op, grad_given, of_grad, "grad_output"),
                   weight = brought(op, weight_given, layouts.weight, "weight");
  const auto& grads = meta_of(grad).locals;
  RankTensors boxes;
  if (mask[1]) {
    const at::Tensor input = brought(op, input_given, layouts.input, "input");
    boxes = fetch_halos(plan, meta_of(input).locals, 0, halo_cause(op, weight_given, "input"));
  } else {
    LocalGuard guard;  // of which only the sizes matter
    for (size_t i = 0; i < grads.size(); ++i) boxes.push_back(grads[i].new_zeros(ref(plan.ranks[i].wanted)));
  }
  std::array<RankTensors, 3> locals;
  {
    LocalGuard guard;
    for (size_t i = 0; i < boxes.size(); ++i) {
      const auto of_rank = gradients(call->convolution, grads[i], boxes[i], local_of(weight, i), mask);
      for (size_t k = 0; k < 3; ++k) locals[k].push_back(of_rank[k]);
      boxes[i].reset();
    }
  }
  std::array<at::Tensor, 3> results;
  if (mask[0]) {
    results[0] =
        make_dtensor(decision->result, add_back_halos(plan, locals[0], halo_cause(op, weight_given, "grad_output")));
  }
  const SpecPtr w = spec_of(weight_given);
  if (mask[1]) results[1] = make_dtensor(w->with_placements(layouts.grad_weight), std::move(locals[1]));
  if (mask[2]) {
    const std::vector<int64_t> channels = {weight_given.size(0)};
    results[2] = make_dtensor(Spec::get(w->mesh(), layouts.grad_bias, channels, w->dtype()), std::move(locals[2]));
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  for (at::Tensor& t : results) stack.emplace_back(std::move(t));
}

}  // namespace

const RuleFamily halo_convolution_handlers("halo_convolution", [](RuleRegistry& registry) {
  registry.add_handler("aten::convolution", convolution);
  registry.add_handler("aten::convolution_backward", convolution_backward);
});

}  // namespace dtensor
