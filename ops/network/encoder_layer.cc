// The fused inference operators behind MultiheadAttention and TransformerEncoderLayer, composed of ordinary ones:
// heads, batch and features may be split as those allow. ATen's kernels need whole layers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "dtensor/dispatch/composite_op_scope.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// [batch, length, n * features] to n tensors [batch, heads, length, features of a head].
template <size_t n>
std::array<at::Tensor, n> split_heads(const at::Tensor& projected, int64_t heads) {
  const auto features = projected.size(-1) / static_cast<int64_t>(n);
  const at::Tensor parts = projected.unflatten(-1, {static_cast<int64_t>(n), heads, features / heads});
  std::array<at::Tensor, n> result;
  for (size_t k = 0; k < n; ++k) result[k] = parts.select(2, static_cast<int64_t>(k)).transpose(1, 2);
  return result;
}

// The packed weights and their inputs, mostly three times the same tensor.
struct Projection {
  at::Tensor query, key, value, weight, bias;
};

std::array<at::Tensor, 3> project(const Projection& p, int64_t heads) {
  if (p.query.is_same(p.key) && p.key.is_same(p.value))
    return split_heads<3>(at::linear(p.query, p.weight, p.bias), heads);
  std::array<at::Tensor, 3> result;
  const auto weights = p.weight.chunk(3, 0), biases = p.bias.chunk(3, 0);
  const std::array<at::Tensor, 3> inputs = {p.query, p.key, p.value};
  for (size_t k = 0; k < 3; ++k) result[k] = split_heads<1>(at::linear(inputs[k], weights[k], biases[k]), heads)[0];
  return result;
}

// A mask (True: ignored), broadcast to [batch, heads, length, length]. The types of mask are those of
// torch.nn.MultiheadAttention.merge_masks(): 0 for [length, length], 1 for [batch, length], 2 for all four dims.
at::Tensor broadcast_mask(const at::Tensor& mask, const c10::IValue& type) {
  if (!mask.defined()) return mask;
  const at::Tensor hidden = mask.to(at::kBool);
  if (hidden.dim() != 2) return hidden;
  const bool of_keys = !type.isNone() && type.toInt() == 1;
  return of_keys ? hidden.unsqueeze(1).unsqueeze(1) : hidden;
}

struct AttentionResult {
  at::Tensor context;  // [batch, length, features]
  at::Tensor weights;  // [batch, heads, length, length]; undefined if not requested
};

AttentionResult attend(const std::array<at::Tensor, 3>& qkv, const at::Tensor& hidden, bool need_weights) {
  const auto& [q, k, v] = qkv;
  AttentionResult result;
  if (need_weights) {
    at::Tensor scores = (q * (1 / std::sqrt(static_cast<double>(q.size(-1))))).matmul(k.transpose(-2, -1));
    if (hidden.defined()) scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    result.weights = scores.softmax(-1);
    result.context = result.weights.matmul(v);
  } else {
    const auto seen = hidden.defined() ? std::optional(hidden.logical_not()) : std::nullopt;
    result.context = at::scaled_dot_product_attention(q, k, v, seen, /*dropout_p=*/0.);
  }
  result.context = result.context.transpose(1, 2).flatten(2);
  return result;
}

// _native_multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
// mask?, need_weights, average_attn_weights, mask_type?).
void multi_head_attention(const c10::OperatorHandle& op, Stack& stack) {
  const CompositeOpScope inside(op, torch::jit::last(stack, op.schema().arguments().size()));
  const Arguments args(op, stack);
  const at::Tensor query = args.tensor("query"), mask = optional_tensor(args["mask"]);
  const int64_t heads = args["num_head"].toInt(), features = args["embed_dim"].toInt();
  const bool need_weights = args["need_weights"].toBool(), averages = args["average_attn_weights"].toBool();
  TORCH_CHECK(query.dim() == 3 && query.size(2) == features && heads > 0 && features % heads == 0, op.operator_name(),
              ": the query must be [batch, length, embed_dim] with embed_dim ", features, ", a multiple of num_head ",
              heads, ", but has shape ", query.sizes());
  const auto qkv = project(
      {query, args.tensor("key"), args.tensor("value"), args.tensor("qkv_weight"), args.tensor("qkv_bias")}, heads);
  AttentionResult a = attend(qkv, broadcast_mask(mask, args["mask_type"]), need_weights);
  const at::Tensor result = at::linear(a.context, args.tensor("proj_weight"), args.tensor("proj_bias"));
  if (need_weights && averages) a.weights = a.weights.mean(1);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
  stack.emplace_back(a.weights);
}

// _transformer_encoder_layer_fwd(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu,
// norm_first, eps, norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2,
// ffn_bias_2, mask?, mask_type?).
void encoder_layer(const c10::OperatorHandle& op, Stack& stack) {
  const CompositeOpScope inside(op, torch::jit::last(stack, op.schema().arguments().size()));
  const Arguments args(op, stack);
  const bool norm_first = args["norm_first"].toBool(), use_gelu = args["use_gelu"].toBool();
  const int64_t heads = args["num_heads"].toInt(), features = args["embed_dim"].toInt();
  const double eps = args["eps"].toDouble();
  const auto normalize = [&](const at::Tensor& x, const char* weight, const char* bias) {
    return at::layer_norm(x, {features}, args.tensor(weight), args.tensor(bias), eps);
  };
  const auto attention = [&](const at::Tensor& x) {
    const auto qkv = project({x, x, x, args.tensor("qkv_weight"), args.tensor("qkv_bias")}, heads);
    const at::Tensor mask = broadcast_mask(optional_tensor(args["mask"]), args["mask_type"]);
    return at::linear(attend(qkv, mask, /*need_weights=*/false).context, args.tensor("proj_weight"),
                      args.tensor("proj_bias"));
  };
  const auto feed_forward = [&](const at::Tensor& x) {
    const at::Tensor inner = at::linear(x, args.tensor("ffn_weight_1"), args.tensor("ffn_bias_1"));
    return at::linear(use_gelu ? at::gelu(inner) : at::relu(inner), args.tensor("ffn_weight_2"),
                      args.tensor("ffn_bias_2"));
  };
  at::Tensor x = args.tensor("src");
  if (norm_first) {
    x = x + attention(normalize(x, "norm_weight_1", "norm_bias_1"));
    x = x + feed_forward(normalize(x, "norm_weight_2", "norm_bias_2"));
  } else {
    x = normalize(x + attention(x), "norm_weight_1", "norm_bias_1");
    x = normalize(x + feed_forward(x), "norm_weight_2", "norm_bias_2");
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(x);
}

// _transform_bias_rescale_qkv(qkv, qkv_bias, num_heads): the heads of query, key and value, the query scaled.
void rescaled_heads(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  auto qkv = split_heads<3>(args.tensor("qkv") + args.tensor("qkv_bias"), args["num_heads"].toInt());
  qkv[0] = qkv[0] * (1 / std::sqrt(static_cast<double>(qkv[0].size(-1))));
  torch::jit::drop(stack, op.schema().arguments().size());
  for (const at::Tensor& t : qkv) stack.emplace_back(t.contiguous());
}

}  // namespace

const RuleFamily encoder_layer_handlers("encoder_layer", [](RuleRegistry& registry) {
  registry.add_handler("aten::_native_multi_head_attention", multi_head_attention);
  registry.add_handler("aten::_transformer_encoder_layer_fwd", encoder_layer);
  registry.add_handler("aten::_transform_bias_rescale_qkv", rescaled_heads);
});

}  // namespace dtensor::internal
