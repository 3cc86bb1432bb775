// Fused scaled-dot-product attention: batch and heads may be split, sequences and features are computed whole.
// scaled_dot_product_attention itself chooses one of these by looking at metadata, or is composed of ordinary
// operators.
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <string_view>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// The kind of a tensor, which determines its dims:
//   q: like the query [batch, heads, target length, features]; o: the result, with the value's features
//   k, v: like key and value [batch, key heads, source length, features]
//   l: logsumexp [batch, heads, ...]; m: mask, broadcast to [batch, heads, target length, source length]
//   r: state of the random generator and the like, the same on all ranks; 0: absent; i: an integer
struct Attention {
  const char* op;
  std::string_view inputs;
  std::string_view outputs;
};

constexpr Attention kAttentions[] = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "qkvm", "ol"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", "oqkvolm", "qkv"},
    {"aten::_scaled_dot_product_flash_attention", "qkv", "ol00iirrr"},
    {"aten::_scaled_dot_product_flash_attention_backward", "oqkvolrrrr", "qkv"},
    {"aten::_scaled_dot_product_efficient_attention", "qkvm", "olrr"},
    {"aten::_scaled_dot_product_efficient_attention_backward", "oqkvmolrr", "qkvm"},
    {"aten::_scaled_dot_product_cudnn_attention", "qkvm", "ol00iirr0"},
    {"aten::_scaled_dot_product_cudnn_attention_backward", "oqkvolrrmrr", "qkv"},
};

enum Factor { kBatch, kHead, kTarget, kSource, kFeature, kValueFeature };

const Spec& input_of(const Attention& a, const OpCall& call, char kind) { return *call.inputs[a.inputs.find(kind)]; }

// Queries times keys, and that times values; backward goes through the first once more, and through each twice. The
// n-th query of a causal attention sees the first n keys: as in a ring of ranks (ring_attention.cc).
double attention_flops(const Attention& a, bool causal, const std::vector<Shape>& inputs) {
  const Shape &q = inputs[a.inputs.find('q')], &k = inputs[a.inputs.find('k')], &v = inputs[a.inputs.find('v')];
  const auto queries = static_cast<double>(q[2]), keys = static_cast<double>(k[2]), below = std::min(queries, keys);
  const double pairs = causal ? below * (below + 1) / 2 + (queries - below) * keys : queries * keys;
  const auto product = [&](int64_t features) {
    return 2.0 * static_cast<double>(q[0]) * static_cast<double>(q[1]) * pairs * static_cast<double>(features);
  };
  const bool is_backward = a.inputs.front() == 'o';
  return is_backward ? 3 * product(q[3]) + 2 * product(v[3]) : product(q[3]) + product(v[3]);
}

// The key and value may have fewer heads than the query, each serving several: ranks get matching heads if all cut
// evenly.
bool heads_match(const Attention& a, const OpCall& call) {
  const int64_t heads = input_of(a, call, 'q').sizes()[1], key_heads = input_of(a, call, 'k').sizes()[1];
  const int64_t ranks = call.mesh.size();
  return heads == key_heads || (heads % ranks == 0 && key_heads % ranks == 0);
}

// Whether gradient `o` of a backward operator is requested.
bool wanted(const OpCall& call, size_t o) {
  return !call.has_arg("grad_input_mask") || call.arg("grad_input_mask").toBoolList().get(o);
}

// `spec`: of an input; null for an output.
std::vector<int> factors_of(const Attention& a, const OpCall& call, char kind, const Spec* spec) {
  switch (kind) {
    case 'q':
      return {kBatch, kHead, kTarget, kFeature};
    case 'o':
      return {kBatch, kHead, kTarget, kValueFeature};
    case 'k':
      return {kBatch, kHead, kSource, kFeature};
    case 'v':
      return {kBatch, kHead, kSource, kValueFeature};
    case 'l': {
      std::vector<int> factors(spec == nullptr ? 2 : spec->ndim(), kNoFactor);
      factors[0] = kBatch;
      factors[1] = kHead;
      return factors;
    }
    case 'm': {
      const Spec* mask = spec != nullptr ? spec : call.inputs[a.inputs.find('m')].get();
      if (mask == nullptr) return {kBatch, kHead, kTarget, kSource};  // no mask, no gradient of it
      const Shape& query = input_of(a, call, 'q').sizes();
      std::vector<int> factors;
      for (int64_t d = 0; d < mask->ndim(); ++d) {
        const int64_t dim = d + 4 - mask->ndim();
        const bool broadcast = dim < 2 && mask->sizes()[d] != query[dim];
        factors.push_back(broadcast ? kNoFactor : static_cast<int>(dim));
      }
      return factors;
    }
    default:
      return std::vector<int>(spec == nullptr ? 0 : spec->ndim(), kNoFactor);
  }
}

std::vector<DimStrategy> attention_strategies(const Attention& a, const OpCall& call, int64_t mesh_dim) {
  TORCH_CHECK_NOT_IMPLEMENTED(call.inputs.size() == a.inputs.size(), call.name(), ": this overload is not supported");
  TORCH_CHECK_NOT_IMPLEMENTED(
      call.arg("dropout_p").toDouble() == 0, call.name(),
      ": dropout inside fused attention would draw the same numbers on some ranks and others on "
      "replicas; choose the math implementation, at::globalContext().setSDPUseFlash(false) and the like.");
  for (char kind : {'q', 'k', 'v'}) {
    TORCH_CHECK(input_of(a, call, kind).ndim() == 4, call.name(), ": query, key and value must have 4 dims, in ",
                call.to_string());
  }
  FactorRule rule;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    rule.inputs.push_back(call.inputs[i] ? factors_of(a, call, a.inputs[i], call.inputs[i].get()) : std::vector<int>());
  }
  std::vector<size_t> whole;  // outputs that are the same on all ranks: not part of the rule
  for (size_t o = 0, k = 0; o < a.outputs.size(); ++o) {
    const char kind = a.outputs[o];
    if (kind == 'i') continue;
    if (kind == 'r' || kind == '0') {
      whole.push_back(k);
    } else {
      // A gradient that is not requested must not restrict the strategies.
      rule.outputs.push_back(factors_of(a, call, wanted(call, o) ? kind : 'q', nullptr));
    }
    ++k;
  }
  rule.need_replication = {kTarget, kSource, kFeature, kValueFeature};
  if (!heads_match(a, call)) rule.need_replication.push_back(kHead);
  if (int grad = std::max(call.input_index("grad_out"), call.input_index("grad_out_")); grad >= 0)
    rule.terms = {{grad}};
  auto result = strategies(rule, call, mesh_dim);
  for (DimStrategy& s : result) {
    for (size_t k : whole) s.outputs.insert(s.outputs.begin() + k, Replicate());
  }
  return result;
}

// [batch, sequence, heads, ...] in memory, as most kernels write it.
at::Tensor heads_inside(const at::Tensor& like, at::IntArrayRef sizes) {
  std::vector<int64_t> order = sizes.vec();
  std::swap(order[1], order[2]);
  return like.new_empty(order).transpose(1, 2);
}

std::vector<at::Tensor> forward_outputs(const Attention& a, const OpCall& call) {
  const std::string_view op = a.op;
  const at::Tensor query = meta_tensor(input_of(a, call, 'q'));
  std::vector<int64_t> sizes = query.sizes().vec();
  const int64_t target = sizes[2];
  sizes[3] = input_of(a, call, 'v').sizes()[3];
  const std::vector<int64_t> rows(sizes.begin(), sizes.begin() + 3);
  const at::Tensor like = sizes[3] == query.size(3) ? at::empty_like(query) : query.new_empty(sizes);
  if (op.ends_with("for_cpu")) {
    return {like, heads_inside(query.to(widened(query.scalar_type())), rows)};
  }
  if (op.find("efficient") != op.npos) {
    const int64_t length = call.get_bool("compute_log_sumexp") ? (target + 31) / 32 * 32 : 0;
    return {heads_inside(query, sizes), query.new_empty({rows[0], rows[1], length}, at::kFloat),
            query.new_empty({}, at::kLong), query.new_empty({}, at::kLong)};
  }
  if (op.find("cudnn") != op.npos) {
    // cuDNN makes no logsumexp unless asked.
    const bool has_logsumexp = call.get_bool("compute_log_sumexp");
    return {like,
            has_logsumexp ? query.new_empty({rows[0], rows[1], target, 1}, at::kFloat) : at::Tensor(),
            {},
            {},
            query.new_empty({}, at::kLong),
            query.new_empty({}, at::kLong),
            {}};
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!call.get_bool("return_debug_mask"), call.name(), ": return_debug_mask is not supported");
  return {like,
          query.new_empty(rows, at::kFloat),
          {},
          {},
          query.new_empty({2}, at::kUInt64),
          query.new_empty({}, at::kUInt64),
          query.new_empty({0})};
}

std::vector<at::Tensor> backward_outputs(const Attention& a, const OpCall& call) {
  const std::string_view op = a.op;
  const bool inside = op.find("for_cpu") != op.npos || op.find("efficient") != op.npos;
  std::vector<at::Tensor> outputs;
  for (size_t o = 0; o < a.outputs.size(); ++o) {
    if (!wanted(call, o)) {
      outputs.emplace_back();
      continue;
    }
    const at::Tensor input = meta_tensor(input_of(a, call, a.outputs[o]));
    outputs.push_back(inside && a.outputs[o] != 'm' ? heads_inside(input, input.sizes()) : at::empty_like(input));
  }
  return outputs;
}

OutputMetas attention_metas(const Attention& a, const OpCall& call) {
  OutputMetas metas = metas_of(call.has_arg("logsumexp") ? backward_outputs(a, call) : forward_outputs(a, call));
  for (size_t o = 0; o < a.outputs.size(); ++o) {
    if (a.outputs[o] == 'i') metas.counts.insert(metas.counts.begin() + o, 0);
  }
  return metas;
}

// Integers are handled in with_lengths, and the kernels divide by the number of heads.
void attention_local(const Attention& a, const LocalCall& local, torch::jit::Stack& stack) {
  const size_t num_args = local.op.schema().arguments().size();
  const at::Tensor query = torch::jit::peek(stack, a.inputs.find('q'), num_args).toTensor();
  if (query.size(0) == 0 || query.size(1) == 0) {
    torch::jit::drop(stack, num_args);
    for (const SpecPtr& output : local.outputs) {
      stack.emplace_back(output ? query.new_empty(output->local_shape(local.i), output->dtype()).zero_()
                                : at::Tensor());
    }
    return;
  }
  const size_t base = stack.size() - num_args;
  local.op.callBoxed(stack);
  stack.erase(std::remove_if(stack.begin() + base, stack.end(), [](const c10::IValue& v) { return v.isInt(); }),
              stack.end());
}

// CUDA's flash and cuDNN attention also return the lengths of the sequences, of the whole tensors.
void with_lengths(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  const int64_t target = args[0].toTensor().size(2), source = args[1].toTensor().size(2);
  dispatch_by_rule(op, stack);
  const size_t base = stack.size() - op.schema().returns().size();
  stack[base + 4] = target;
  stack[base + 5] = source;
}

// The choice uses metadata only, so the global tensors are passed, and all ranks choose alike.
void choose_backend(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  count_as_given();
  c10::impl::ExcludeDispatchKeyGuard below_us(kDTensorKey);
  op.callBoxed(stack);
}

}  // namespace

const RuleFamily attention_rules("attention", [](RuleRegistry& registry) {
  for (const Attention& a : kAttentions) {
    OpRule rule;
    rule.per_dim = [a](const OpCall& call, int64_t mesh_dim) { return attention_strategies(a, call, mesh_dim); };
    rule.metas = [a](const OpCall& call) { return attention_metas(a, call); };
    rule.local = [a](const LocalCall& local, torch::jit::Stack& stack) { attention_local(a, local, stack); };
    rule.local_calls_operator = true;  // where no part is empty
    rule.flops = [a](const OpCall& call) {
      return [a, causal = call.get_bool("is_causal")](const std::vector<Shape>& inputs) {
        return attention_flops(a, causal, inputs);
      };
    };
    rule.value_free = {"scale"};
    registry.add(a.op, std::move(rule));
  }
  registry.add_handler("aten::_scaled_dot_product_flash_attention", with_lengths);
  registry.add_handler("aten::_scaled_dot_product_cudnn_attention", with_lengths);
  registry.add_handler("aten::_fused_sdp_choice", choose_backend);
});

}  // namespace dtensor::internal
