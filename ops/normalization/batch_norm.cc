// Batch and instance normalization. Statistics are those of the whole batch: the mean and variance of every rank's part
// are combined. Then every rank normalises its part with ATen's own kernel for given statistics.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>

#include <array>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "comm/scope.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/split_rows.h"
#include "ops/support/arguments.h"
#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// ------------------------------------------------------------ with given statistics: elementwise

// [batch, channels, ...]; weight, bias and statistics are [channels].
std::vector<int> factors_of(const Spec* spec) {
  if (spec == nullptr) return {};
  if (spec->ndim() == 1) return {1};
  std::vector<int> factors(static_cast<size_t>(spec->ndim()));
  std::iota(factors.begin(), factors.end(), 0);
  return factors;
}

CoreDims given_dims(const OpCall& call) {
  const Spec& input = *call.input("input");
  CoreDims dims;
  for (const auto& spec : call.inputs) dims.rule.inputs.push_back(factors_of(spec.get()));
  dims.rule.outputs = {factors_of(&input), {kNoFactor}, {kNoFactor}};  // the others are empty
  dims.aside = factors_of(&input);
  return dims;
}

OutputMetas given_metas(const OpCall& call) {
  const at::Tensor input = meta_tensor(*call.input("input"));
  return metas_of({input.contiguous(input.suggest_memory_format()), input.new_empty({0}), input.new_empty({0})});
}

CoreDims given_backward_dims(const OpCall& call) {
  const Spec& input = *call.input("input");
  CoreDims dims;
  for (const auto& spec : call.inputs) {
    const bool empty = spec && spec->ndim() == 1 && spec->sizes()[0] != input.sizes()[1];
    dims.rule.inputs.push_back(empty ? std::vector<int>{kNoFactor} : factors_of(spec.get()));
  }
  dims.rule.outputs = {factors_of(&input), {1}, {1}};
  for (const int d : factors_of(&input)) {
    if (d != 1) dims.rule.contractions.push_back({d, ReduceOp::kSum});
  }
  dims.rule.terms = {{call.input_index("grad_out")}};
  return dims;
}

OutputMetas given_backward_metas(const OpCall& call) {
  const at::Tensor input = meta_tensor(*call.input("input"));
  const Spec* weight = call.input("weight");
  const at::Tensor of_channels =
      input.new_empty({input.size(1)}, weight != nullptr ? weight->dtype() : input.scalar_type());
  std::vector<at::Tensor> outputs = {input.contiguous(input.suggest_memory_format()), of_channels, of_channels};
  const auto mask = call.arg("output_mask").toBoolList();
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!mask.get(o)) outputs[o] = at::Tensor();
  }
  return metas_of(outputs);
}

// The arguments of a call, independent of the operator's argument names.
struct BatchNormCall {
  at::Tensor input, weight, bias, running_mean, running_var;
  bool training = false;
  double momentum = 0, eps = 0;
};

BatchNormCall read(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const auto first = [&](const char* a, const char* b) { return (args[a].isNone() ? args[b] : args[a]).toDouble(); };
  BatchNormCall call;
  call.input = args.tensor("input");
  call.weight = optional_tensor(args["weight"]);
  call.bias = optional_tensor(args["bias"]);
  call.running_mean = optional_tensor(args["running_mean"]);
  call.running_var = optional_tensor(args["running_var"]);
  const bool updates = op.schema().name().find("_with_update") != std::string::npos;
  const bool has_stats = call.running_mean.defined() && call.running_var.defined();
  const bool without = op.schema().name() == "aten::_batch_norm_no_update" && !has_stats;
  call.training = args["training"].isBool() ? args["training"].toBool() : updates || without;
  call.momentum = first("momentum", "exponential_average_factor");
  call.eps = first("eps", "epsilon");
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK(call.input.dim() >= 2, name,
              ": the input must have 2 dims or more, [batch, channels, ...], but has shape ", call.input.sizes());
  const std::pair<const char*, at::Tensor*> tensors[] = {{"input", &call.input},
                                                         {"weight", &call.weight},
                                                         {"bias", &call.bias},
                                                         {"running_mean", &call.running_mean},
                                                         {"running_var", &call.running_var}};
  std::optional<DeviceMesh> mesh;
  for (const auto& [argument, t] : tensors) {
    if (t->defined() && is_dtensor(*t) && !mesh) mesh = spec_of(*t)->mesh();
  }
  for (const auto& [argument, t] : tensors) {
    if (!t->defined()) continue;
    TORCH_CHECK(t == &call.input || (t->dim() == 1 && t->size(0) == call.input.size(1)), name, ": ", argument,
                " should contain ", call.input.size(1), " elements, one a channel, but has shape ", t->sizes());
    if (is_dtensor(*t)) continue;
    if (!plain_is_replicated()) throw_plain_beside_distributed(name, argument, *t, *mesh);
    *t = replicate_plain(*t, *mesh);
  }
  return call;
}

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) dims.push_back(d);
  }
  return dims;
}

// The dtype in which ATen keeps the statistics.
c10::ScalarType stats_type(const BatchNormCall& call) {
  const c10::ScalarType dtype = call.input.scalar_type();
  if (!call.input.is_cpu()) return widened(dtype);
  for (const at::Tensor& t : {call.weight, call.running_mean}) {
    if (t.defined()) return t.scalar_type();
  }
  return dtype;
}

struct Normalized {
  at::Tensor output, mean, inverse_std;  // of the batch
  at::Tensor running_mean, running_var;  // new running statistics
};

// Running statistics are written in place and keep their layout: only their increments move. Functional forms write to
// copies.
Normalized train(const c10::OperatorHandle& op, BatchNormCall call, bool functional) {
  call.input = reduced(call.input, op, "input", call.weight);
  // For var_mean(), which reads no parameter.
  const ScopeGuard module([&](Scope& s) {
    s.module_path = module_of_call({call.input, call.weight, call.bias, call.running_mean});
  });
  const auto dtype = stats_type(call);
  const at::Tensor x = call.input.to(widened(call.input.scalar_type()));
  auto [var, mean] = at::var_mean(x, all_but_channels(x), /*correction=*/0, /*keepdim=*/false);
  const double n = static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
  Normalized result;
  result.mean = mean.to(dtype);
  result.inverse_std = at::rsqrt(var + call.eps).to(dtype);
  const auto [output, none, neither] = at::native_batch_norm(call.input, call.weight, call.bias, result.mean,
                                                             var.to(dtype), /*training=*/false, 0, call.eps);
  result.output = output;
  const auto moved = [&](const at::Tensor& running, const at::Tensor& now) {
    at::Tensor result = functional && running.defined() ? running.clone() : running;
    return running.defined() ? result.mul_(1 - call.momentum).add_((now * call.momentum).to(running.scalar_type()))
                             : result;
  };
  result.running_mean = moved(call.running_mean, mean);
  result.running_var = moved(call.running_var, var * (n / (n - 1)));
  return result;
}

// All forms return output, mean and inverse standard deviation; some also a reserve, functional ones new statistics.
void batch_norm(const c10::OperatorHandle& op, Stack& stack) {
  const BatchNormCall call = read(op, stack);
  const bool functional = op.schema().name().ends_with("_functional");
  const size_t results = op.schema().returns().size() - (functional ? 2 : 0);
  Normalized r;
  if (call.training) {
    r = train(op, call, functional);
  } else {
    if (op.schema().name() == "aten::native_batch_norm") return dispatch_by_rule(op, stack);
    std::tie(r.output, r.mean, r.inverse_std) =
        at::native_batch_norm(call.input, call.weight, call.bias, call.running_mean, call.running_var,
                              /*training=*/false, call.momentum, call.eps);
    r.running_mean = call.running_mean;
    r.running_var = call.running_var;
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  for (const at::Tensor& t : {r.output, r.mean, r.inverse_std}) stack.emplace_back(t);
  if (results > 3) {
    at::Tensor none;
    {
      LocalGuard guard;
      none = at::empty({0}, call.input.options().dtype(at::kByte));
    }
    stack.emplace_back(replicate_copy(none, spec_of(call.input)->mesh()));
  }
  if (functional) {
    for (const at::Tensor& t : {r.running_mean, r.running_var}) stack.emplace_back(t);
  }
}

// ------------------------------------------------------------ gradients

using Gradients = std::array<at::Tensor, 3>;  // of input, weight and bias

struct Backward {
  at::Tensor grad, input, weight, mean, inverse_std;
  std::array<bool, 3> mask;
};

Gradients gradients(const c10::OperatorHandle& op, const Backward& b) {
  const auto dtype = widened(b.input.scalar_type());
  const at::Tensor g = reduced(b.grad, op, "grad_out", b.weight).to(dtype),
                   x = reduced(b.input, op, "input", b.weight).to(dtype);
  const auto dims = all_but_channels(x);
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = x.size(1);
  const at::Tensor inverse_std = b.inverse_std.to(dtype).view(shape);
  const at::Tensor normal = (x - b.mean.to(dtype).view(shape)) * inverse_std;
  // Both sums in one exchange.
  const at::Tensor sums = reduced(at::stack({g.sum(dims), (g * normal).sum(dims)}), op, "sums", b.weight);
  const at::Tensor sum = sums.select(0, 0), product = sums.select(0, 1);
  Gradients result;
  if (b.mask[0]) {
    const double n = static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
    const at::Tensor scale = b.weight.defined() ? inverse_std * b.weight.to(dtype).view(shape) : inverse_std;
    const at::Tensor centered = g - (sum / n).view(shape) - normal * (product / n).view(shape);
    result[0] = (centered * scale).to(b.input.scalar_type());
  }
  const auto weight_type = b.weight.defined() ? b.weight.scalar_type() : b.input.scalar_type();
  if (b.mask[1]) result[1] = product.to(weight_type);
  if (b.mask[2]) result[2] = sum.to(weight_type);
  return result;
}

// native_batch_norm_backward, batch_norm_backward, cudnn_batch_norm_backward, miopen_batch_norm_backward.
void batch_norm_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const auto first = [&](const char* a, const char* b) {
    return optional_tensor(args[a].isNone() ? args[b] : args[a]);
  };
  const c10::IValue& train = args["train"].isNone() ? args["update"] : args["train"];
  Backward b{first("grad_out", "grad_output"), args.tensor("input"),
             optional_tensor(args["weight"]),  optional_tensor(args["save_mean"]),
             first("save_invstd", "save_var"), {true, true, true}};
  if (args["output_mask"].isBoolList()) {
    for (size_t o = 0; o < 3; ++o) b.mask[o] = args["output_mask"].toBoolList().get(o);
  }
  Gradients result;
  if (train.isNone() || train.toBool()) {
    if (!is_dtensor(b.input) || !is_dtensor(b.grad)) return dispatch_by_rule(op, stack);
    result = gradients(op, b);
  } else if (op.schema().name() == "aten::native_batch_norm_backward") {
    return dispatch_by_rule(op, stack);
  } else {
    std::tie(result[0], result[1], result[2]) = at::native_batch_norm_backward(
        b.grad, b.input, b.weight, optional_tensor(args["running_mean"]), optional_tensor(args["running_var"]), b.mean,
        b.inverse_std, /*train=*/false, args["eps"].toDouble(), b.mask);
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  for (at::Tensor& t : result) stack.emplace_back(std::move(t));
}

// ------------------------------------------------------------ instance norm, above autograd

// Every image has its own statistics: a group norm with one channel per group. Running statistics are the mean of
// these.
void instance_norm(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor x = args.tensor("input"), running_mean = optional_tensor(args["running_mean"]),
                   running_var = optional_tensor(args["running_var"]);
  const at::Tensor weight = optional_tensor(args["weight"]), bias = optional_tensor(args["bias"]);
  const bool use_input_stats = args["use_input_stats"].toBool(), cudnn = args["cudnn_enabled"].toBool();
  const double momentum = args["momentum"].toDouble(), eps = args["eps"].toDouble();
  const bool has_stats = running_mean.defined() && running_var.defined();
  if (x.dim() < 3 || x.numel() == 0 || running_mean.defined() != running_var.defined() ||
      (!use_input_stats && !has_stats))
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  torch::jit::drop(stack, op.schema().arguments().size());
  if (!use_input_stats) {
    stack.emplace_back(at::batch_norm(x, weight, bias, running_mean, running_var, false, momentum, eps, cudnn));
    return;
  }
  // Like ATen's, the result is row-major, and a copy of the weight is saved for backward: it may be written to
  // meanwhile.
  at::Tensor y =
      at::group_norm(x.contiguous(), x.size(1), weight.defined() ? weight.clone() : weight, bias, eps, cudnn);
  if (has_stats) {
    at::NoGradGuard no_grad;
    std::vector<int64_t> space(static_cast<size_t>(x.dim() - 2));
    std::iota(space.begin(), space.end(), 2);
    const at::Tensor own = x.detach().to(widened(x.scalar_type()));
    const auto [var, mean] = at::var_mean(own, space, /*correction=*/1, /*keepdim=*/false);
    for (const auto& [running, now] : {std::pair(running_mean, mean), std::pair(running_var, var)}) {
      at::Tensor target = running;
      target.mul_(1 - momentum).add_(now.mean(0).to(target.scalar_type()), momentum);
    }
  }
  stack.emplace_back(std::move(y));
}

}  // namespace

const RuleFamily batch_norm_rules("batch_norm", [](RuleRegistry& registry) {
  OpRule given = core_dims_rule(given_dims, given_metas);
  given.local = [own = given.local](const LocalCall& local, Stack& stack) {
    const at::Tensor input = stack.front().toTensor();
    own(local, stack);
    for (size_t o : {1, 2}) stack[o] = input.new_empty({0});  // kernels of devices differ in what they leave here
  };
  given.value_free = {"momentum", "eps"};
  registry.add("aten::native_batch_norm", std::move(given));
  OpRule backward = core_dims_rule(given_backward_dims, given_backward_metas);
  backward.value_free = {"eps"};
  registry.add("aten::native_batch_norm_backward", std::move(backward));

  for (const char* op : {"aten::native_batch_norm", "aten::_native_batch_norm_legit",
                         "aten::_native_batch_norm_legit_functional", "aten::_native_batch_norm_legit_no_training",
                         "aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional",
                         "aten::_batch_norm_no_update", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
    registry.add_handler(op, batch_norm);
  for (const char* op : {"aten::native_batch_norm_backward", "aten::batch_norm_backward",
                         "aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward"})
    registry.add_handler(op, batch_norm_backward);
  registry.add_handler("aten::instance_norm", instance_norm);
});

}  // namespace dtensor::internal
