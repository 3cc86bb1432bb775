// Networks for images [batch, channels, height, width] in plain torch::nn: a vision transformer, and a small
// convolutional one.
#pragma once

#include <torch/nn.h>

#include <string>

#include "mesh/device_mesh.h"

namespace dtensor {
struct ParallelPlan;
}

namespace examples {

struct ViTConfig {
  int64_t image = 32;
  int64_t patch = 8;  // must divide image
  int64_t width = 48;
  int64_t heads = 4;  // must divide width
  int64_t layers = 2;
  int64_t classes = 10;
};

class ViTBlockImpl : public torch::nn::Module {
 public:
  ViTBlockImpl(int64_t width, int64_t heads)
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        q(register_module("q", torch::nn::Linear(width, width))),
        k(register_module("k", torch::nn::Linear(width, width))),
        v(register_module("v", torch::nn::Linear(width, width))),
        proj(register_module("proj", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        heads_(heads) {}

  // x: [batch, patches, width].
  torch::Tensor forward(torch::Tensor x) {
    const auto y = norm1(x);
    const auto split = [&](const torch::Tensor& t) { return t.unflatten(-1, {heads_, -1}).transpose(1, 2); };
    const auto mixed = torch::scaled_dot_product_attention(split(q(y)), split(k(y)), split(v(y)));
    x = x + proj(mixed.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(norm2(x))));
  }

  torch::nn::LayerNorm norm1;
  torch::nn::Linear q, k, v, proj;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;

 private:
  int64_t heads_;
};
TORCH_MODULE(ViTBlock);

// Source: Dosovitskiy et al., An Image is Worth 16x16 Words, 2021.
class ViTImpl : public torch::nn::Module {
 public:
  explicit ViTImpl(const ViTConfig& c)
      : patches(register_module("patches", torch::nn::Linear(3 * c.patch * c.patch, c.width))),
        start(register_parameter("start", torch::zeros({1, 1, c.width}))),
        positions(
            register_parameter("positions", torch::randn({1, 1 + c.image / c.patch * (c.image / c.patch), c.width}))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.width})))),
        head(register_module("head", torch::nn::Linear(c.width, c.classes))),
        patch_(c.patch) {
    for (int64_t i = 0; i < c.layers; ++i) blocks->push_back(ViTBlock(c.width, c.heads));
  }

  // images: [batch, 3, image, image] -> scores [batch, classes].
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = embedded(images);
    for (const auto& block : *blocks) x = block->as<ViTBlock>()->forward(x);
    return scores(x);
  }

  // What the first block takes: [batch, patches, width].
  torch::Tensor embedded(const torch::Tensor& images) {
    const auto tiles =
        images.unflatten(3, {-1, patch_}).unflatten(2, {-1, patch_});  // [b, 3, rows, patch, columns, patch]
    const auto x = patches(tiles.permute({0, 2, 4, 1, 3, 5}).flatten(3).flatten(1, 2));
    return torch::cat({start.expand({x.size(0), -1, -1}), x}, 1) + positions;
  }
  // Of what the last block gives.
  torch::Tensor scores(const torch::Tensor& x) { return head(norm(x).select(1, 0)); }

  torch::nn::Linear patches;
  torch::Tensor start, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;

 private:
  int64_t patch_;
};
TORCH_MODULE(ViT);

// Convolutions, batch norm, pooling.
class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl(int64_t channels, int64_t classes)
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, channels, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(channels))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, 3).stride(2)))),
        head(register_module("head", torch::nn::Linear(channels, classes))) {}

  torch::Tensor forward(const torch::Tensor& images) {
    const auto x = torch::max_pool2d(torch::relu(norm(conv1(images))), 2);
    return head(torch::relu(conv2(x)).mean({2, 3}));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d conv2;
  torch::nn::Linear head;
};
TORCH_MODULE(ConvNet);

// For distribute_module(), of a ViT: heads and hidden features over "tp", everything else replicated.
void shard_vit(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

// For parallelize_module() over "tp": the same layouts as styles.
dtensor::ParallelPlan vit_styles();

}  // namespace examples
