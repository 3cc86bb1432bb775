// Llama in plain torch::nn: RMSNorm, rotary positions, grouped-query attention, SwiGLU; with experts, Mixtral.
// shard_llama() shards it as Megatron does.
//
//   Llama model(LlamaConfig{.vocab = 32000});
//   distribute_module(*model, mesh, examples::shard_llama);
//
// Source: Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023; Shoeybi et al., Megatron-LM,
// 2019; Jiang et al., Mixtral of Experts, 2024.
#pragma once

#include <torch/nn.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dtensor/kv_cache.h"
#include "dtensor/sequence_slots.h"
#include "mesh/device_mesh.h"

namespace dtensor {
struct ParallelPlan;
}

namespace examples {

struct LlamaConfig {
  int64_t vocab = 512;
  int64_t width = 64;    // hidden size; width / heads must be even
  int64_t heads = 8;     // of queries; must divide width
  int64_t kv_heads = 4;  // of keys and values; must divide heads
  int64_t hidden = 160;  // of the feed-forward layers
  int64_t layers = 2;
  int64_t experts = 0;  // feed-forward layers of each block, over a mesh dim "ep"; 0: one for all tokens
  int64_t choices = 2;  // experts of a token
  // By torch::scaled_dot_product_attention(), which keeps no scores of all pairs, and which a ContextParallel scope
  // computes over sharded sequences; false: composed of products and a softmax.
  bool fused_attention = false;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;  // base of the frequencies of rotary positions
  // Called with the embeddings, and with the results of both halves of a block before they are added. Unset: nothing,
  // which a model normally needs; used to compare with code that communicates explicitly.
  std::function<torch::Tensor(const torch::Tensor&)> settle;
};

class RMSNormImpl : public torch::nn::Module {
 public:
  explicit RMSNormImpl(int64_t width, double epsilon = 1e-5)
      : weight(register_parameter("weight", torch::ones({width}))), epsilon_(epsilon) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + epsilon_) * weight;
  }

  torch::Tensor weight;

 private:
  double epsilon_;
};
TORCH_MODULE(RMSNorm);

// The feed-forward layers of a block with experts.
class LlamaExpertsImpl : public torch::nn::Module {
 public:
  explicit LlamaExpertsImpl(const LlamaConfig& c)
      : gate(weights("gate", {c.experts, c.width, c.hidden})),
        up(weights("up", {c.experts, c.width, c.hidden})),
        down(weights("down", {c.experts, c.hidden, c.width})) {}

  // x: [batch, length, width], distributed over a mesh dim "ep". scores, ids: of each token's experts, [batch, length,
  // choices].
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& scores, const torch::Tensor& ids);

  torch::Tensor gate, up, down;

 private:
  torch::Tensor weights(const char* name, c10::IntArrayRef sizes) {
    return register_parameter(name, torch::randn(sizes) / std::sqrt(static_cast<double>(sizes[1])));
  }
};
TORCH_MODULE(LlamaExperts);

class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const LlamaConfig& c)
      : config_(c),
        attention_norm(register_module("attention_norm", RMSNorm(c.width, c.norm_epsilon))),
        wq(linear("wq", c.width, c.width)),
        wk(linear("wk", c.width, c.width / c.heads * c.kv_heads)),
        wv(linear("wv", c.width, c.width / c.heads * c.kv_heads)),
        wo(linear("wo", c.width, c.width)),
        feed_forward_norm(register_module("feed_forward_norm", RMSNorm(c.width, c.norm_epsilon))),
        gate(nullptr),
        up(nullptr),
        down(nullptr),
        router(nullptr),
        experts(nullptr) {
    if (c.experts > 0) {
      router = linear("router", c.width, c.experts);
      experts = register_module("experts", LlamaExperts(c));
      return;
    }
    gate = linear("gate", c.width, c.hidden);
    up = linear("up", c.width, c.hidden);
    down = linear("down", c.hidden, c.width);
  }

  // Where the tokens of a call stand, and what they attend to.
  struct Tokens {
    torch::Tensor cosine, sine;  // [length, width / heads / 2], or one for each sequence: [batch, 1, length, ...]
    torch::Tensor mask;          // added to the scores of attention; undefined: nothing is masked
    bool causal = false;         // each position attends to those up to its own, without a mask: of fused attention
    const dtensor::GenerationStep* step = nullptr;  // null: without a cache
  };

  // x: [batch, length, width]. `cache`: null if there is no step.
  torch::Tensor forward(torch::Tensor x, const Tokens& tokens, dtensor::KVCache* cache) {
    x = x + settled(attention(attention_norm(x), tokens, cache));
    return x + settled(feed_forward(feed_forward_norm(x)));
  }

 private:
  torch::Tensor feed_forward(const torch::Tensor& x) {
    if (!experts) return down(torch::silu(gate(x)) * up(x));
    const auto [scores, ids] = router(x).topk(config_.choices, -1);
    return experts(x, torch::softmax(scores, -1), ids);
  }

  torch::Tensor settled(const torch::Tensor& x) const { return config_.settle ? config_.settle(x) : x; }

  torch::nn::Linear linear(const char* name, int64_t from, int64_t to) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
  }

  static torch::Tensor rotated(const torch::Tensor& x, const torch::Tensor& cosine, const torch::Tensor& sine) {
    const auto halves = x.chunk(2, -1);
    return torch::cat({halves[0] * cosine - halves[1] * sine, halves[0] * sine + halves[1] * cosine}, -1);
  }

  torch::Tensor attention(const torch::Tensor& x, const Tokens& tokens, dtensor::KVCache* cache) {
    const int64_t size = config_.width / config_.heads;
    const auto split = [&](const torch::Tensor& t) {  // [batch, heads, length, size]
      return t.view({t.size(0), t.size(1), -1, size}).transpose(1, 2);
    };
    const auto q = rotated(split(wq(x)), tokens.cosine, tokens.sine);
    auto k = rotated(split(wk(x)), tokens.cosine, tokens.sine), v = split(wv(x));
    if (cache != nullptr) std::tie(k, v) = cache->update(*tokens.step, k, v);
    const auto shared = [&](const torch::Tensor& t) {  // every head of keys and values serves several of queries
      const int64_t group = config_.heads / config_.kv_heads;
      return t.unsqueeze(2).expand({-1, -1, group, -1, -1}).reshape({t.size(0), config_.heads, t.size(2), size});
    };
    const auto composed = [&] {
      const auto scores = q.matmul(shared(k).transpose(-2, -1)) / std::sqrt(static_cast<double>(size));
      return torch::softmax(tokens.mask.defined() ? scores + tokens.mask : scores, -1).matmul(shared(v));
    };
    const auto mask = tokens.mask.defined() ? std::optional(tokens.mask) : std::nullopt;
    const auto mixed = config_.fused_attention ? torch::scaled_dot_product_attention(q, shared(k), shared(v), mask,
                                                                                     /*dropout_p=*/0., tokens.causal)
                                               : composed();
    return wo(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), config_.width}));
  }

  LlamaConfig config_;

 public:
  RMSNorm attention_norm;
  torch::nn::Linear wq, wk, wv, wo;
  RMSNorm feed_forward_norm;
  torch::nn::Linear gate, up, down;  // null with experts
  torch::nn::Linear router;          // null without
  LlamaExperts experts;
};
TORCH_MODULE(LlamaBlock);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const LlamaConfig& c)
      : config(c),
        tokens(register_module("tokens", torch::nn::Embedding(c.vocab, c.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", RMSNorm(c.width, c.norm_epsilon))),
        head(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(c.width, c.vocab).bias(false)))) {
    for (int64_t i = 0; i < c.layers; ++i) blocks->push_back(LlamaBlock(c));
  }

  // ids: [batch, length] -> scores [batch, length, vocab].
  torch::Tensor forward(const torch::Tensor& ids) { return head(norm(run_blocks(embedded(ids), 0, blocks->size()))); }

  // The blocks from `first` to before `end`, as in forward(); x: [batch, length, width].
  torch::Tensor run_blocks(torch::Tensor x, size_t first, size_t end) {
    const int64_t length = x.size(1);
    const auto exact = position_options();
    LlamaBlockImpl::Tokens at;
    set_angles(at, torch::outer(torch::arange(length, exact), frequencies(exact)));
    // With one position nothing is masked.
    at.causal = config.fused_attention && length > 1;
    if (length > 1 && !at.causal) at.mask = torch::full({length, length}, -INFINITY, value_options()).triu(1);
    for (size_t i = first; i < end; ++i) x = blocks[i]->as<LlamaBlock>()->forward(x, at, nullptr);
    return x;
  }

  // ids: [slots, columns], new tokens -> scores [slots, vocab] for the token after the last one of each slot. `caches`:
  // one per layer, of the tokens before, to which these are added.
  torch::Tensor score_next(const torch::Tensor& ids, const dtensor::GenerationStep& step,
                           std::vector<dtensor::KVCache>& caches) {
    const auto exact = position_options();
    LlamaBlockImpl::Tokens at;
    set_angles(at, step.positions.unsqueeze(1).unsqueeze(-1).to(exact.dtype()) * frequencies(exact));
    at.mask = torch::zeros(step.mask.sizes(), value_options()).masked_fill(step.mask.logical_not(), -INFINITY);
    at.step = &step;
    auto x = embedded(ids);
    for (size_t i = 0; i < blocks->size(); ++i) x = blocks[i]->as<LlamaBlock>()->forward(x, at, &caches[i]);
    const auto last = step.last.view({-1, 1, 1}).expand({-1, 1, config.width});
    return head(norm(x.gather(1, last).squeeze(1)));
  }

  LlamaConfig config;
  torch::nn::Embedding tokens;
  torch::nn::ModuleList blocks;
  RMSNorm norm;
  torch::nn::Linear head;

 private:
  torch::TensorOptions value_options() const { return tokens->weight.options().requires_grad(false); }
  // Half-precision numbers cannot count positions.
  torch::TensorOptions position_options() const {
    return value_options().dtype(tokens->weight.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  }
  torch::Tensor frequencies(const torch::TensorOptions& exact) const {
    const int64_t half = config.width / config.heads / 2;
    return torch::pow(config.rope_theta, torch::arange(half, exact) / -static_cast<double>(half));
  }
  void set_angles(LlamaBlockImpl::Tokens& at, const torch::Tensor& angles) const {
    at.cosine = angles.cos().to(value_options().dtype());
    at.sine = angles.sin().to(value_options().dtype());
  }

  torch::Tensor embedded(const torch::Tensor& ids) { return config.settle ? config.settle(tokens(ids)) : tokens(ids); }
};
TORCH_MODULE(Llama);

// For distribute_module(): tables and column-parallel layers by rows of the weight over "tp", row-parallel ones by its
// columns, everything else replicated.
void shard_llama(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

// For parallelize_module() over "tp": the same layouts as styles. With `sequence`, activations between the layers are
// sharded by positions, and what was an all-reduce is a reduce-scatter and an all-gather. Source: Korthikanti et al.,
// Reducing Activation Recomputation in Large Transformer Models, 2022.
dtensor::ParallelPlan llama_styles(bool sequence = false);

}  // namespace examples
