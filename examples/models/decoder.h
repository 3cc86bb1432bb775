// A decoder in several common variants: norms by hand or not, queries, keys and values by one product or three, gates
// in one or two. Its communication on a mesh should be the same for all of them.
#pragma once

#include <torch/nn.h>

#include <string>

#include "mesh/device_mesh.h"

namespace examples {

enum class Norm { kLayerNorm, kRMSNorm, kLayerNormByHand, kRMSNormByHand };
// Three products; one whose result is cut into three; one whose result is viewed as [.., 3, heads, size].
enum class Projection { kSeparate, kFusedAndCut, kFusedAndViewed };
// gelu(up(x)); silu(a) * b of a fused product's halves; torch::glu of it.
enum class FeedForward { kGelu, kGatedHalves, kGLU };

struct DecoderConfig {
  Norm norm = Norm::kLayerNorm;
  Projection projection = Projection::kSeparate;
  FeedForward feed_forward = FeedForward::kGelu;
  int64_t width = 32;
  int64_t heads = 8;  // must divide width
  int64_t layers = 2;
};

class DecoderBlockImpl : public torch::nn::Module {
 public:
  explicit DecoderBlockImpl(const DecoderConfig& c) : config_(c) {
    const int64_t w = c.width;
    for (const char* name : {"norm1", "norm2"}) {
      register_parameter(std::string(name) + "_weight", torch::ones({w}));
      register_parameter(std::string(name) + "_bias", torch::zeros({w}));
    }
    if (c.projection == Projection::kSeparate) {
      for (const char* name : {"q", "k", "v"}) register_module(name, torch::nn::Linear(w, w));
    } else {
      register_module("qkv", torch::nn::Linear(w, 3 * w));
    }
    register_module("out", torch::nn::Linear(w, w));
    const bool plain = c.feed_forward == FeedForward::kGelu;
    register_module(plain ? "up" : "gate_up", torch::nn::Linear(w, plain ? 4 * w : 8 * w));
    register_module("down", torch::nn::Linear(4 * w, w));
  }

  // x: [batch, length, width].
  torch::Tensor forward(torch::Tensor x) {
    x = x + apply("out", attention(normalised(x, "norm1")));
    return x + apply("down", gated(normalised(x, "norm2")));
  }

 private:
  torch::Tensor apply(const char* linear, const torch::Tensor& x) {
    return named_modules()[linear]->as<torch::nn::Linear>()->forward(x);
  }

  torch::Tensor normalised(const torch::Tensor& x, const std::string& name) {
    const auto parameters = named_parameters(/*recurse=*/false);
    const auto &weight = parameters[name + "_weight"], &bias = parameters[name + "_bias"];
    if (config_.norm == Norm::kLayerNorm) return torch::layer_norm(x, {config_.width}, weight, bias);
    if (config_.norm == Norm::kRMSNorm) return torch::rms_norm(x, {config_.width}, weight, 1e-5) + bias;
    const auto centered = config_.norm == Norm::kRMSNormByHand ? x : x - x.mean(-1, /*keepdim=*/true);
    return centered * torch::rsqrt(centered.square().mean(-1, /*keepdim=*/true) + 1e-5) * weight + bias;
  }

  torch::Tensor attention(const torch::Tensor& x) {
    const auto by_heads = [&](const torch::Tensor& t) { return t.unflatten(-1, {config_.heads, -1}).transpose(1, 2); };
    torch::Tensor mixed;
    if (config_.projection == Projection::kSeparate) {
      mixed = torch::scaled_dot_product_attention(by_heads(apply("q", x)), by_heads(apply("k", x)),
                                                  by_heads(apply("v", x)));
    } else if (config_.projection == Projection::kFusedAndCut) {
      const auto parts = apply("qkv", x).chunk(3, -1);
      mixed = torch::scaled_dot_product_attention(by_heads(parts[0]), by_heads(parts[1]), by_heads(parts[2]));
    } else {
      const auto parts = apply("qkv", x).unflatten(-1, {3, config_.heads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
      mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    }
    return mixed.transpose(1, 2).flatten(2);
  }

  torch::Tensor gated(const torch::Tensor& x) {
    if (config_.feed_forward == FeedForward::kGelu) return torch::gelu(apply("up", x));
    const auto both = apply("gate_up", x);
    if (config_.feed_forward == FeedForward::kGLU) return torch::glu(both, -1);
    const auto halves = both.chunk(2, -1);
    return torch::silu(halves[0]) * halves[1];
  }

  DecoderConfig config_;
};
TORCH_MODULE(DecoderBlock);

class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const DecoderConfig& c) : blocks(register_module("blocks", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < c.layers; ++i) blocks->push_back(DecoderBlock(c));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : *blocks) x = block->as<DecoderBlock>()->forward(x);
    return x;
  }

  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Decoder);

// For distribute_module(): heads and hidden features over "tp", of fused products those of every part.
void shard_decoder(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

}  // namespace examples
