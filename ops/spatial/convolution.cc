// Convolutions of any number of dims, transposed, dilated, grouped, depthwise. The batch may be split, and so may input
// channels (the result is Partial) and output channels; a grouped convolution only into whole groups. Spatial dims are
// whole.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "ops/spatial/window_arguments.h"
#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

enum ConvolutionFactor { kImage, kIn, kOut, kFirstSpace };

struct Channels {
  int64_t groups, in, out;
};

Channels channels_of(const OpCall& call) {
  const Spec &input = *call.input("input"), &weight = *call.input("weight");
  TORCH_CHECK(input.ndim() >= 3 && input.ndim() == weight.ndim(), call.name(),
              ": input and weight must have as many dims as each other, 3 or more, in ", call.to_string());
  const int64_t groups = call.get_int("groups");
  const bool transposed = call.get_bool("transposed");
  return {groups, input.sizes()[1], transposed ? weight.sizes()[1] * groups : weight.sizes()[0]};
}

// Whether each rank's input and output channels belong to the same groups.
bool splits_groups(const OpCall& call, const Channels& channels) {
  return channels.groups % call.mesh.size() == 0 || (channels.in == channels.groups && channels.out == channels.groups);
}

// Factors of the input, the result, the weight and the bias.
struct ConvolutionFactors {
  std::vector<int> input, output, weight, bias;
  std::vector<int> need_replication;
};

ConvolutionFactors dims_of(const OpCall& call) {
  const Channels channels = channels_of(call);
  const auto ndim = static_cast<int>(call.input("input")->ndim());
  ConvolutionFactors dims;
  if (channels.groups > 1) {  // input and output channels share one factor, the groups
    const int group = kIn, within = kOut;
    dims = {{kImage, group}, {kImage, group}, {group, within}, {group}, {within}};
    if (!splits_groups(call, channels)) dims.need_replication.push_back(group);
  } else {
    dims = {{kImage, kIn}, {kImage, kOut}, {kOut, kIn}, {kOut}, {}};
    if (call.get_bool("transposed")) dims.weight = {kIn, kOut};
  }
  for (int d = 2; d < ndim; ++d) {
    dims.input.push_back(kFirstSpace + 2 * d);
    dims.weight.push_back(kFirstSpace + 2 * d + 1);
    dims.output.push_back(kNoFactor);
    dims.need_replication.push_back(dims.input.back());
    dims.need_replication.push_back(dims.weight.back());
  }
  return dims;
}

CoreDims forward_dims(const OpCall& call) {
  const ConvolutionFactors dims = dims_of(call);
  CoreDims result;
  FactorRule& rule = result.rule;
  rule.inputs = {dims.input, dims.weight, call.input("bias") != nullptr ? dims.bias : std::vector<int>()};
  rule.outputs = {dims.output};
  rule.need_replication = dims.need_replication;
  if (call.get_int("groups") == 1) rule.contractions = {{kIn, ReduceOp::kSum}};
  rule.terms = {{0, 1}, {2}};
  return result;
}

CoreDims backward_dims(const OpCall& call) {
  const ConvolutionFactors dims = dims_of(call);
  CoreDims result;
  FactorRule& rule = result.rule;
  rule.inputs = {dims.output, dims.input, dims.weight};
  rule.outputs = {dims.input, dims.weight, dims.bias};
  rule.need_replication = dims.need_replication;
  rule.contractions = {{kImage, ReduceOp::kSum}};
  if (call.get_int("groups") == 1) {
    rule.contractions.push_back({kOut, ReduceOp::kSum});
    result.aside = {kIn};  // the bias' gradient does not depend on it
  }
  rule.terms = {{0}};
  return result;
}

// Channels-last or contiguous, as for the input or the weight.
at::MemoryFormat format_of(const OpCall& call) {
  const at::Tensor input = meta_tensor(*call.input("input")), weight = meta_tensor(*call.input("weight"));
  const auto format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

std::vector<int64_t> output_sizes(const OpCall& call) {
  const Spec &input = *call.input("input"), &weight = *call.input("weight");
  const auto stride = *call.get_ints("stride"), padding = *call.get_ints("padding"),
             dilation = *call.get_ints("dilation"), more = *call.get_ints("output_padding");
  std::vector<int64_t> sizes = {input.sizes()[0], channels_of(call).out};
  for (int64_t d = 0; d + 2 < input.ndim(); ++d) {
    const int64_t size = input.sizes()[d + 2], reach = along(dilation, d) * (weight.sizes()[d + 2] - 1) + 1;
    const int64_t step = along(stride, d), pad = along(padding, d);
    if (call.get_bool("transposed")) {
      sizes.push_back((size - 1) * step - 2 * pad + reach + along(more, d));
    } else {
      sizes.push_back((size + 2 * pad - reach) / step + 1);
    }
  }
  return sizes;
}

OutputMetas forward_metas(const OpCall& call) {
  // ATen checks the sizes before it reports that it cannot compute without data.
  run_meta(call);
  return metas_of({meta_tensor(*call.input("input")).new_empty(output_sizes(call)).contiguous(format_of(call))});
}

OutputMetas backward_metas(const OpCall& call) {
  const at::Tensor grad = meta_tensor(*call.input("grad_output")), input = meta_tensor(*call.input("input")),
                   weight = meta_tensor(*call.input("weight"));
  const auto format = format_of(call);
  std::vector<at::Tensor> outputs = {input.contiguous(format), weight.contiguous(format),
                                     grad.new_empty({channels_of(call).out})};
  const auto mask = call.arg("output_mask").toBoolList();
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!mask.get(o)) outputs[o] = at::Tensor();
  }
  return metas_of(outputs);
}

// A rank's number of groups is proportional to its channels.
void local_channels(const LocalCall& local, Arguments& args) {
  const bool backward = local.op.schema().argumentIndexWithName("grad_output").has_value();
  const int64_t own = args.tensor("input").size(1), all = local.inputs[backward ? 1 : 0]->sizes()[1];
  const int64_t groups = args["groups"].toInt();
  if (own != all && groups > 1) args.set("groups", std::max<int64_t>(1, groups * own / all));
  // An empty result of ATen may have no channels although there is a bias: a dim that is not cut is left unchanged.
  const bool is_cut = backward && args.tensor("grad_output").size(1) != local.inputs[0]->sizes()[1];
  if (is_cut && args["bias_sizes"].isIntList())
    args.set("bias_sizes", std::vector<int64_t>{args.tensor("grad_output").size(1)});
}

double numel_as_double(const Shape& shape) {
  double product = 1;
  for (const int64_t n : shape) product *= static_cast<double>(n);
  return product;
}

// FLOP if the whole weight is applied to each image once per place: of the result, or of the input of a transposed one.
// Spatial dims are whole, and the weight has the rank's channels.
double flops_at(double places, const Shape& images, const Shape& weight) {
  return images.empty() ? 0 : 2 * places * static_cast<double>(images[0]) * numel_as_double(weight);
}

Flops forward_flops(const OpCall& call) {
  const Shape& input = call.input("input")->sizes();
  const std::vector<int64_t> output = output_sizes(call);
  const double places = call.get_bool("transposed") ? numel_as_double(Shape(input.begin() + 2, input.end()))
                                                    : numel_as_double(Shape(output.begin() + 2, output.end()));
  return [places](const std::vector<Shape>& inputs) { return flops_at(places, inputs[0], inputs[1]); };
}

Flops backward_flops(const OpCall& call) {
  const Spec& windows = *call.input(call.get_bool("transposed") ? "input" : "grad_output");
  const auto mask = call.arg("output_mask").toBoolList();
  const int gradients = int{mask.get(0)} + int{mask.get(1)};
  if (gradients == 0) return {};
  const double places = gradients * numel_as_double(Shape(windows.sizes().begin() + 2, windows.sizes().end()));
  return [places](const std::vector<Shape>& inputs) { return flops_at(places, inputs[0], inputs[2]); };
}

Flops flops_over_time(const OpCall& call) {
  const int64_t steps = call.input("self")->sizes()[0] + 2 * call.get_int("pad") - call.input("weight")->sizes()[0] + 1;
  return [steps](const std::vector<Shape>& inputs) {
    return 2 * static_cast<double>(steps * inputs[0][1]) * numel_as_double(inputs[1]);
  };
}

OpRule with_flops(OpRule rule, std::function<Flops(const OpCall&)> flops) {
  rule.flops = std::move(flops);
  return rule;
}

}  // namespace

const RuleFamily convolution_rules("convolution", [](RuleRegistry& registry) {
  const OpRule forward = with_flops(core_dims_rule(forward_dims, forward_metas, local_channels), forward_flops);
  for (const char* op : {"aten::convolution", "aten::_convolution"}) registry.add(op, forward);
  registry.add("aten::convolution_backward",
               with_flops(core_dims_rule(backward_dims, backward_metas, local_channels), backward_flops));
  const CoreDimsOp over_time = {"aten::conv_tbc", "Tbc,Kco,o->Ubo", "self weight+bias"};
  registry.add(over_time.op, with_flops(core_dims_rule(over_time), flops_over_time));
});

}  // namespace dtensor::internal
