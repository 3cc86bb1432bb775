// Layer, RMS and group normalization. The normalised dims are whole, except that channels may be split into whole
// groups; gradients of weight and bias are sums over the other dims, so splitting those makes them Partial. If
// normalised dims are sharded, split_normalization.cc and split_group_norm.cc come first.
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// Inputs and outputs by their shape: x: like the input; s: statistics, one per row that is normalised; w: weight, bias.
struct Normalization {
  const char* op;
  std::string_view inputs;
  std::string_view outputs;
};

constexpr Normalization kOverLastDims[] = {
    {"aten::native_layer_norm", "xww", "xss"},
    {"aten::native_layer_norm_backward", "xxssww", "xww"},
    {"aten::_fused_rms_norm", "xw", "xs"},
    {"aten::_fused_rms_norm_backward", "xxsw", "xw"},
};

constexpr Normalization kOverGroups[] = {
    {"aten::native_group_norm", "xww", "xss"},
    {"aten::native_group_norm_backward", "xxssw", "xww"},
};

// Factors of a tensor of each kind; `batch`: the first dims, which may be split.
std::vector<int> factors_of(char kind, int ndim, int batch) {
  std::vector<int> factors;
  for (int d = kind == 'w' ? batch : 0; d < ndim; ++d) factors.push_back(kind == 's' && d >= batch ? kNoFactor : d);
  return factors;
}

FactorRule rule_of(const Normalization& norm, const OpCall& call, int batch, int stats_ndim, int weight_ndim) {
  const auto ndim = static_cast<int>(call.input("input")->ndim());
  FactorRule rule;
  auto append = [&](std::vector<std::vector<int>>& tensors, char kind) {
    const int dims = kind == 'x' ? ndim : kind == 's' ? stats_ndim : batch + weight_ndim;
    tensors.push_back(factors_of(kind, dims, batch));
  };
  for (size_t i = 0; i < norm.inputs.size(); ++i) {
    append(rule.inputs, norm.inputs[i]);
    if (!call.inputs[i]) rule.inputs.back().clear();
  }
  for (char kind : norm.outputs) append(rule.outputs, kind);
  for (int d = batch; d < ndim; ++d) rule.need_replication.push_back(d);
  for (int d = 0; d < batch; ++d) rule.contractions.push_back({d, ReduceOp::kSum});
  // Linear in grad_out, but without terms: the gradient goes on to weights and to the residual stream, each of which
  // would pay for the deferred reduction.
  return rule;
}

int num_batch_dims(const OpCall& call) {
  const int64_t ndim = call.input("input")->ndim();
  const auto shape = *call.get_ints("normalized_shape");
  TORCH_CHECK(!shape.empty() && static_cast<int64_t>(shape.size()) <= ndim, call.name(), ": normalized_shape has ",
              shape.size(), " dims, the input ", ndim);
  const at::IntArrayRef sizes = call.input("input")->sizes();
  TORCH_CHECK(sizes.slice(sizes.size() - shape.size()) == at::IntArrayRef(shape), call.name(), ": normalized_shape is ",
              at::IntArrayRef(shape), ", which the last sizes of the input should be, but it has the sizes ", sizes);
  return static_cast<int>(ndim - shape.size());
}

// RMS norm and CUDA keep statistics of half types in float; on CPU layer and group norm do so only with float weights.
c10::ScalarType stats_type(const OpCall& call) {
  const Spec& input = *call.input("input");
  const bool on_cpu = call.mesh.world().device_type() == c10::DeviceType::CPU;
  const Spec* bias = call.has_arg("bias") ? call.input("bias") : nullptr;
  bool mixed = false;
  for (const Spec* s : {call.input("weight"), bias}) mixed |= s != nullptr && s->dtype() != input.dtype();
  if (on_cpu && !mixed && call.has_arg("bias")) return input.dtype();
  return widened(input.dtype());
}

OutputMetas outputs_of(const Normalization& norm, const OpCall& call, const at::Tensor& x, at::IntArrayRef stats,
                       at::IntArrayRef weight_shape) {
  const Spec* weight = call.input("weight");
  std::vector<at::Tensor> outputs;
  for (size_t o = 0; o < norm.outputs.size(); ++o) {
    if (call.has_arg("output_mask") && !call.arg("output_mask").toBoolList().get(o)) {
      outputs.emplace_back();
    } else if (norm.outputs[o] == 'x') {
      outputs.push_back(x);
    } else if (norm.outputs[o] == 's') {
      outputs.push_back(x.new_empty(stats, stats_type(call)));
    } else {
      outputs.push_back(x.new_empty(weight_shape, weight != nullptr ? weight->dtype() : x.scalar_type()));
    }
  }
  return metas_of(outputs);
}

OutputMetas last_dims_metas(const Normalization& norm, const OpCall& call) {
  const Spec& input = *call.input("input");
  const int batch = num_batch_dims(call);
  Shape stats = input.sizes();
  std::fill(stats.begin() + batch, stats.end(), 1);
  return outputs_of(norm, call, meta_tensor(input).contiguous(), stats, at::IntArrayRef(input.sizes()).slice(batch));
}

OutputMetas group_metas(const Normalization& norm, const OpCall& call) {
  const at::Tensor input = meta_tensor(*call.input("input"));
  return outputs_of(norm, call, at::empty_like(input, input.options(), input.suggest_memory_format()),
                    {call.get_int("N"), call.get_int("group")}, {call.get_int("C")});
}

// Channels may be split if every rank has whole groups: not into several blocks of them.
CoreDims group_norm_dims(const Normalization& norm, const OpCall& call) {
  FactorRule rule = rule_of(norm, call, 1, 2, 1);
  const int64_t groups = call.get_int("group");
  bool in_blocks = false;
  for (const auto& spec : call.inputs) {
    if (!spec) continue;
    for (const Placement& p : spec->placements()) in_blocks |= p.is_strided_shard() && p.dim() == (spec->ndim() > 1);
  }
  if ((groups % call.mesh.size() == 0 && !in_blocks) || groups == call.get_int("C")) {
    std::erase(rule.need_replication, 1);
    for (size_t i = 0; i < norm.inputs.size(); ++i) {
      if (norm.inputs[i] == 's') rule.inputs[i][1] = 1;
    }
    for (size_t o = 0; o < norm.outputs.size(); ++o) {
      if (norm.outputs[o] == 's') rule.outputs[o][1] = 1;
    }
  }
  return {std::move(rule), {}};
}

// Batch size, channels and groups in the call are global; a rank needs its own.
void local_groups(const LocalCall&, Arguments& args) {
  const at::Tensor input = args.tensor("input");
  const int64_t groups = args["group"].toInt() * input.size(1) / std::max<int64_t>(1, args["C"].toInt());
  args.set("N", input.size(0));
  args.set("C", input.size(1));
  args.set("group", std::max<int64_t>(1, groups));
}

}  // namespace

const RuleFamily normalization_rules("normalization", [](RuleRegistry& registry) {
  for (const Normalization& norm : kOverLastDims) {
    OpRule rule = factor_op([norm](const OpCall& call) {
      const int batch = num_batch_dims(call), ndim = static_cast<int>(call.input("input")->ndim());
      return rule_of(norm, call, batch, ndim, ndim - batch);
    });
    rule.metas = [norm](const OpCall& call) { return last_dims_metas(norm, call); };
    rule.value_free = {"eps"};
    registry.add(norm.op, std::move(rule));
  }
  for (const Normalization& norm : kOverGroups) {
    OpRule rule = core_dims_rule([norm](const OpCall& call) { return group_norm_dims(norm, call); },
                                 [norm](const OpCall& call) { return group_metas(norm, call); }, local_groups);
    rule.value_free = {"eps"};
    registry.add(norm.op, std::move(rule));
  }
});

}  // namespace dtensor::internal
