// Layer and RMS normalization where the elements of a row are sharded (activations after a column-parallel layer): the
// elements do not move, and the ranks exchange one or two numbers per row, in forward and in backward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/moments.h"
#include "ops/reduction/split_rows.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// A call, forward or backward.
struct NormalizationCall {
  NormalizationCall(const c10::OperatorHandle& op, Stack& stack)
      : op(op),
        args(op, stack),
        grad(optional_tensor(args["grad_out"])),
        weight(optional_tensor(args["weight"])),
        bias(optional_tensor(args["bias"])),
        mean(optional_tensor(args["mean"])),
        rstd(optional_tensor(args["rstd"])) {
    const at::Tensor input = args.tensor("input");
    const auto shape = args["normalized_shape"].toIntVector();
    const auto ndim = static_cast<int64_t>(shape.size()), batch = input.dim() - ndim;
    if (ndim == 0 || batch < 0 || input.sizes().slice(batch) != shape) return;
    for (const at::Tensor& w : {weight, bias}) {
      if (w.defined() && w.sizes() != at::IntArrayRef(shape)) return;
    }
    std::vector<int64_t> dims(shape.size());
    std::iota(dims.begin(), dims.end(), batch);
    rows = split_rows(input, dims, batch, ndim, {grad, weight, bias, mean, rstd});
  }

  // Weight or bias in the layout of the elements, in the dtype to compute in.
  at::Tensor beside(const at::Tensor& w, const char* name) const {
    return brought(w, rows->weights, op, name).to(rows->dtype);
  }
  at::Tensor beside_input(const at::Tensor& t, const char* name) const {
    return brought(t, spec_of(rows->input)->placements(), op, name, {weight, bias}).to(rows->dtype);
  }

  const c10::OperatorHandle& op;
  const Arguments args;
  const at::Tensor grad, weight, bias, mean, rstd;
  std::optional<SplitRows> rows;  // nullopt: use the rule
};

// `y` is overwritten.
at::Tensor result_of(const NormalizationCall& call, at::Tensor y) {
  if (call.weight.defined()) y.mul_(call.beside(call.weight, "weight"));
  if (call.bias.defined()) y.add_(call.beside(call.bias, "bias"));
  return y.to(call.rows->input.scalar_type()).contiguous();
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps).
void layer_norm(const c10::OperatorHandle& op, Stack& stack) {
  const NormalizationCall call(op, stack);
  if (!call.rows) return dispatch_by_rule(op, stack);
  const at::Tensor& input = call.rows->input;
  SummaryRequest request = moments_request(call.rows->dims, call.rows->dtype);
  request.summarize = [&rows = *call.rows](const at::Tensor& local, const LocalLayout&, int64_t) {
    const Moments moments = moments_of(local.to(rows.dtype), rows.dims);
    return std::vector<at::Tensor>{moments.var, moments.mean};
  };
  const Combination combination = moments_combination(request);
  const double own = seconds_to_combine(*spec_of(input), request, combination);
  if (!pays_to_stay(*call.rows, own, {input}, {call.weight, call.bias})) return dispatch_by_rule(op, stack);
  const auto moments =
      combine_summaries(input, request, combination, call_cause(op, "input", {input, call.weight, call.bias}));
  const at::Tensor &var = moments[0], &mean = moments[1];
  const at::Tensor rstd = at::rsqrt(var + call.args["eps"].toDouble());
  const at::Tensor y = result_of(call, (input.to(call.rows->dtype) - mean).mul_(rstd));
  const auto dtype = stats_type(*call.rows, {call.weight, call.bias});
  return_tensors(op, stack, {y, mean.to(dtype), rstd.to(dtype)});
}

// Composite on devices without a kernel of its own: autograd or the composite comes first.
bool go_through_autograd(const c10::OperatorHandle& op, Stack& stack, const at::Tensor& input) {
  if (c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradOther)) return false;
  if (input.is_cpu()) {
    run_composite_code(op, stack);
  } else {
    const c10::impl::ExcludeDispatchKeyGuard past_us(kAboveAutogradKey);
    count_as_given();
    op.callBoxed(stack);
  }
  return true;
}

// _fused_rms_norm(input, normalized_shape, weight?, eps?).
void rms_norm(const c10::OperatorHandle& op, Stack& stack) {
  if (go_through_autograd(op, stack, Arguments(op, stack).tensor("input"))) return;
  const NormalizationCall call(op, stack);
  if (!call.rows || !pays_to_stay(*call.rows, call.rows->seconds_to_add(1), {call.rows->input}, {call.weight}))
    return dispatch_by_rule(op, stack);
  const SplitRows& rows = *call.rows;
  const at::Tensor x = rows.input.to(rows.dtype);
  const at::Tensor squares = reduced(x.square().sum(rows.dims, /*keepdim=*/true), op, "input", call.weight);
  const c10::IValue& given = call.args["eps"];
  const double least = rows.dtype == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                 : static_cast<double>(std::numeric_limits<float>::epsilon());
  const at::Tensor rstd =
      at::rsqrt(squares / static_cast<double>(rows.size()) + (given.isNone() ? least : given.toDouble()));
  return_tensors(op, stack, {result_of(call, x * rstd), rstd});
}

// Gradients of input, weight and bias; `of_mean`: the mean was subtracted.
std::array<at::Tensor, 3> gradients(const NormalizationCall& call, bool of_mean, const std::array<bool, 3>& mask) {
  const SplitRows& rows = *call.rows;
  const at::Tensor grad = call.beside_input(call.grad, "grad_out"), x = rows.input.to(rows.dtype);
  const at::Tensor rstd = reduced(call.rstd, call.op, "rstd", call.weight).to(rows.dtype);
  const at::Tensor normal = (of_mean ? x - reduced(call.mean, call.op, "mean", call.weight).to(rows.dtype) : x) * rstd;
  std::array<at::Tensor, 3> result;
  if (mask[0]) {
    const at::Tensor g = call.weight.defined() ? grad * call.beside(call.weight, "weight") : grad;
    const auto mean_of = [&](const at::Tensor& t) {
      return t.sum(rows.dims, /*keepdim=*/true) / static_cast<double>(rows.size());
    };
    at::Tensor centered;
    if (of_mean) {  // both sums in one exchange
      const at::Tensor means = reduced(at::stack({mean_of(g), mean_of(g * normal)}), call.op, "sums", call.weight);
      centered = (g - means.select(0, 0)).sub_(normal * means.select(0, 1));
    } else {
      centered = g - normal * reduced(mean_of(g * normal), call.op, "sum", call.weight);
    }
    result[0] = centered.mul_(rstd).to(rows.input.scalar_type()).contiguous();
  }
  // Partial on mesh dims that shard rows.
  const auto over_rows = [&](const at::Tensor& t) {
    const at::Tensor sum = rows.others.empty() ? t.clone() : t.sum(rows.others);
    return cast_addends(sum.contiguous(), call.weight.defined() ? call.weight.scalar_type() : rows.input.scalar_type());
  };
  if (mask[1]) result[1] = over_rows(grad * normal);
  if (mask[2]) result[2] = over_rows(grad);
  return result;
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask),
// _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight?, output_mask).
template <bool kMean>
void normalization_backward(const c10::OperatorHandle& op, Stack& stack) {
  const NormalizationCall call(op, stack);
  if (!call.rows || !call.grad.defined() ||
      !pays_to_stay(*call.rows, call.rows->seconds_to_add(kMean ? 2 : 1), {call.rows->input, call.grad}, {call.weight}))
    return dispatch_by_rule(op, stack);
  const auto wanted = call.args["output_mask"].toBoolList();
  std::array<bool, 3> mask = {wanted.get(0), wanted.get(1), kMean && wanted.get(2)};
  const auto all = gradients(call, kMean, mask);
  return_tensors(op, stack, {all.begin(), all.begin() + (kMean ? 3 : 2)});
}

}  // namespace

const RuleFamily split_normalization_handlers("split_normalization", [](RuleRegistry& registry) {
  registry.add_handler("aten::native_layer_norm", layer_norm);
  registry.add_handler("aten::native_layer_norm_backward", normalization_backward<true>);
  registry.add_handler("aten::_fused_rms_norm", rms_norm);
  registry.add_handler("aten::_fused_rms_norm_backward", normalization_backward<false>);
});

}  // namespace dtensor::internal
