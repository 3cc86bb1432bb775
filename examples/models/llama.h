// Llama in plain torch::nn: RMSNorm, rotary positions, grouped-query attention, SwiGLU. shard_llama() shards it as
// Megatron does; the only other line for meshes is the layout of its cache.
//
//   Llama model(LlamaConfig{.vocab = 32000});
//   distribute_module(*model, mesh, examples::shard_llama);
//
// Source: Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023; Shoeybi et al., Megatron-LM,
// 2019.
#pragma once

#include <torch/nn.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
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
  // Called with the embeddings, and with the results of both halves of a block before they are added. Unset: nothing,
  // which a model normally needs; used to compare with code that communicates explicitly.
  std::function<torch::Tensor(const torch::Tensor&)> settle;
};

class RMSNormImpl : public torch::nn::Module {
 public:
  explicit RMSNormImpl(int64_t width) : weight(register_parameter("weight", torch::ones({width}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-5) * weight;
  }

  torch::Tensor weight;
};
TORCH_MODULE(RMSNorm);

// The keys and values of the positions so far, of one layer.
struct KVCache {
  int64_t capacity = 0;        // positions that there is room for; 0: it grows with each call
  int64_t length = 0;          // positions so far
  torch::Tensor keys, values;  // [batch, kv_heads, capacity, or length if that is 0, width / heads]

  // Appends those of more positions; then `k` and `v` are those of all. Error (c10::Error): more than the capacity.
  void add(torch::Tensor& k, torch::Tensor& v) {
    const int64_t before = length;
    length += k.size(2);
    if (capacity == 0) {
      k = keys = before > 0 ? torch::cat({keys, k}, 2) : k;
      v = values = before > 0 ? torch::cat({values, v}, 2) : v;
      return;
    }
    TORCH_CHECK(length <= capacity, "KVCache: ", length, " positions, but there is room for ", capacity);
    const auto put = [&](torch::Tensor& kept, torch::Tensor& t) {
      if (!kept.defined()) {
        kept = torch::zeros({t.size(0), t.size(1), capacity, t.size(3)}, t.options());
        if (dtensor::is_dtensor(kept)) dtensor::relayout_(kept, dtensor::DTensor(t).placements());
      }
      kept.slice(2, before, length).copy_(t);
      t = kept.slice(2, 0, length);
    };
    put(keys, k);
    put(values, v);
  }
};

class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const LlamaConfig& c)
      : config_(c),
        attention_norm(register_module("attention_norm", RMSNorm(c.width))),
        wq(linear("wq", c.width, c.width)),
        wk(linear("wk", c.width, c.width / c.heads * c.kv_heads)),
        wv(linear("wv", c.width, c.width / c.heads * c.kv_heads)),
        wo(linear("wo", c.width, c.width)),
        feed_forward_norm(register_module("feed_forward_norm", RMSNorm(c.width))),
        gate(linear("gate", c.width, c.hidden)),
        up(linear("up", c.width, c.hidden)),
        down(linear("down", c.hidden, c.width)) {}

  // x: [batch, length, width]. `cosine`, `sine`: [length, width / heads / 2], of the positions. With a cache, the
  // positions are those after the ones in it.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& cosine, const torch::Tensor& sine,
                        const torch::Tensor& mask, KVCache* cache) {
    x = x + settled(attention(attention_norm(x), cosine, sine, mask, cache));
    const auto y = feed_forward_norm(x);
    return x + settled(down(torch::silu(gate(y)) * up(y)));
  }

 private:
  torch::Tensor settled(const torch::Tensor& x) const { return config_.settle ? config_.settle(x) : x; }

  torch::nn::Linear linear(const char* name, int64_t from, int64_t to) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
  }

  static torch::Tensor rotated(const torch::Tensor& x, const torch::Tensor& cosine, const torch::Tensor& sine) {
    const auto halves = x.chunk(2, -1);
    return torch::cat({halves[0] * cosine - halves[1] * sine, halves[0] * sine + halves[1] * cosine}, -1);
  }

  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& cosine, const torch::Tensor& sine,
                          const torch::Tensor& mask, KVCache* cache) {
    const int64_t size = config_.width / config_.heads;
    const auto split = [&](const torch::Tensor& t) {  // [batch, heads, length, size]
      return t.view({t.size(0), t.size(1), -1, size}).transpose(1, 2);
    };
    const auto q = rotated(split(wq(x)), cosine, sine);
    auto k = rotated(split(wk(x)), cosine, sine), v = split(wv(x));
    if (cache != nullptr) cache->add(k, v);
    const auto shared = [&](const torch::Tensor& t) {  // every head of keys and values serves several of queries
      const int64_t group = config_.heads / config_.kv_heads;
      return t.unsqueeze(2).expand({-1, -1, group, -1, -1}).reshape({t.size(0), config_.heads, t.size(2), size});
    };
    const auto scores = q.matmul(shared(k).transpose(-2, -1)) / std::sqrt(static_cast<double>(size));
    const auto mixed = torch::softmax(mask.defined() ? scores + mask : scores, -1).matmul(shared(v));
    return wo(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), config_.width}));
  }

  LlamaConfig config_;

 public:
  RMSNorm attention_norm;
  torch::nn::Linear wq, wk, wv, wo;
  RMSNorm feed_forward_norm;
  torch::nn::Linear gate, up, down;
};
TORCH_MODULE(LlamaBlock);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const LlamaConfig& c)
      : config(c),
        tokens(register_module("tokens", torch::nn::Embedding(c.vocab, c.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", RMSNorm(c.width))),
        head(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(c.width, c.vocab).bias(false)))) {
    for (int64_t i = 0; i < c.layers; ++i) blocks->push_back(LlamaBlock(c));
  }

  // ids: [batch, length] -> scores [batch, length, vocab]. `caches`: one per layer, or none; those of the positions
  // before, to which these are added.
  torch::Tensor forward(const torch::Tensor& ids, std::vector<KVCache>* caches = nullptr) {
    const auto x = config.settle ? config.settle(tokens(ids)) : tokens(ids);
    return head(norm(run_blocks(x, 0, blocks->size(), caches)));
  }

  // The blocks from `first` to before `end`, as in forward(); x: [batch, length, width].
  torch::Tensor run_blocks(torch::Tensor x, size_t first, size_t end, std::vector<KVCache>* caches = nullptr) {
    const int64_t length = x.size(1), half = config.width / config.heads / 2;
    const int64_t before = caches != nullptr ? (*caches)[0].length : 0;
    const auto options = tokens->weight.options().requires_grad(false);
    // Half-precision numbers cannot count positions.
    const auto exact = options.dtype(tokens->weight.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
    const auto frequencies = torch::pow(10000.0, torch::arange(half, exact) / -static_cast<double>(half));
    const auto angles = torch::outer(torch::arange(before, before + length, exact), frequencies);
    torch::Tensor mask;  // with one position nothing is masked
    if (length > 1) mask = torch::full({length, before + length}, -INFINITY, options).triu(before + 1);
    const auto cosine = angles.cos().to(options.dtype()), sine = angles.sin().to(options.dtype());
    for (size_t i = first; i < end; ++i) {
      x = blocks[i]->as<LlamaBlock>()->forward(x, cosine, sine, mask, caches == nullptr ? nullptr : &(*caches)[i]);
    }
    return x;
  }

  LlamaConfig config;
  torch::nn::Embedding tokens;
  torch::nn::ModuleList blocks;
  RMSNorm norm;
  torch::nn::Linear head;
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
