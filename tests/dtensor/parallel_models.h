// Small models that tests of parallel styles shard, and the meshes of these tests.
#pragma once

#include <torch/nn.h>

#include <vector>

#include "dtensor/parallel_style.h"
#include "dtensor/redistribute.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace dtensor::testing {

namespace nn = torch::nn;
using torch::Tensor;

inline std::vector<DeviceMesh> style_meshes() {
  return {DeviceMesh(World::local(2), {2}, {"tp"}), DeviceMesh(World::local(4), {4}, {"tp"}),
          DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"})};
}

// Batches over dp, where there is one.
inline Tensor batch_on(const DeviceMesh& mesh, const Tensor& x) {
  Placements placements(mesh.ndim(), Replicate());
  if (mesh.ndim() == 2) placements.front() = Shard(0);
  Tensor batch = distribute_tensor(x, mesh, placements);
  return x.is_floating_point() ? batch.requires_grad_() : batch;
}

struct MlpImpl : nn::Module {
  explicit MlpImpl(int64_t width = 6, int64_t hidden = 10)
      : up(register_module("up", nn::Linear(width, hidden))),
        down(register_module("down", nn::Linear(hidden, width))) {}
  Tensor forward(const Tensor& x) { return down(torch::gelu(up(x))); }
  nn::Linear up, down;
};
TORCH_MODULE(Mlp);

// Root mean square, written by hand.
struct HandNormImpl : nn::Module {
  explicit HandNormImpl(int64_t width) : weight(register_parameter("weight", torch::ones({width}))) {}
  Tensor forward(const Tensor& x) {
    const Tensor rms = torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6);
    return x * rms * weight;
  }
  Tensor weight;
};
TORCH_MODULE(HandNorm);

struct AttentionImpl : nn::Module {
  AttentionImpl(int64_t width, int64_t heads)
      : heads(heads),
        wq(register_module("wq", nn::Linear(nn::LinearOptions(width, width).bias(false)))),
        wk(register_module("wk", nn::Linear(nn::LinearOptions(width, width).bias(false)))),
        wv(register_module("wv", nn::Linear(nn::LinearOptions(width, width).bias(false)))),
        wo(register_module("wo", nn::Linear(nn::LinearOptions(width, width).bias(false)))) {}
  Tensor forward(const Tensor& x) {
    const auto split = [&](const Tensor& t) { return t.unflatten(-1, {heads, t.size(-1) / heads}).transpose(1, 2); };
    const Tensor y = torch::scaled_dot_product_attention(split(wq(x)), split(wk(x)), split(wv(x)), {}, 0, true);
    return wo(y.transpose(1, 2).flatten(2));
  }
  int64_t heads;
  nn::Linear wq, wk, wv, wo;
};
TORCH_MODULE(Attention);

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width)
      : attn_norm(register_module("attn_norm", HandNorm(width))),
        attn(register_module("attn", Attention(width, 4))),
        mlp_norm(register_module("mlp_norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        mlp(register_module("mlp", Mlp(width, 12))) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = x + attn(attn_norm(x));
    return y + mlp(mlp_norm(y));
  }
  HandNorm attn_norm;
  Attention attn;
  nn::LayerNorm mlp_norm;
  Mlp mlp;
};
TORCH_MODULE(Block);

struct LanguageModelImpl : nn::Module {
  LanguageModelImpl(int64_t words, int64_t width)
      : embed(register_module("embed", nn::Embedding(words, width))),
        layers(register_module("layers", nn::Sequential(Block(width), Block(width)))),
        norm(register_module("norm", HandNorm(width))),
        head(register_module("head", nn::Linear(nn::LinearOptions(width, words).bias(false)))) {}
  Tensor forward(const Tensor& ids) { return head(norm(layers->forward(embed(ids)))); }
  nn::Embedding embed;
  nn::Sequential layers;
  HandNorm norm;
  nn::Linear head;
};
TORCH_MODULE(LanguageModel);

// Styles of a LanguageModel with activations sharded by positions between the layers.
inline ParallelPlan sequence_parallel_plan() {
  return {{"embed", RowwiseParallel({.output = Shard(1)})},
          {"*norm", SequenceParallel()},
          {"layers.*.attn.w[qkv]", ColwiseParallel()},
          {"layers.*.attn.wo", RowwiseParallel({.output = Shard(1)})},
          {"*.mlp.up", ColwiseParallel()},
          {"*.mlp.down", RowwiseParallel({.output = Shard(1)})},
          {"head", ColwiseParallel()}};
}

}  // namespace dtensor::testing
