// A U-Net for fields on a grid [batch, channels, height, width], as surrogates of simulations are, in plain torch::nn.
// With images split by rows and parameters whole, every rank keeps its rows from the first convolution to the last.
#pragma once

#include <torch/nn.h>

#include <vector>

namespace examples {

enum class Upsampling { kNearest, kBilinear, kTransposed };

struct UNetConfig {
  int64_t channels = 8;  // of the first level; twice as many on each next one
  int64_t levels = 2;    // height and width must divide by 2^levels
  Upsampling upsampling = Upsampling::kNearest;
};

// Two convolutions.
class UNetBlockImpl : public torch::nn::Module {
 public:
  UNetBlockImpl(int64_t in, int64_t out)
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(out, out, 3).padding(1)))) {}

  torch::Tensor forward(const torch::Tensor& x) { return torch::relu(conv2(torch::relu(conv1(x)))); }

  torch::nn::Conv2d conv1, conv2;
};
TORCH_MODULE(UNetBlock);

// Source: Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, 2015.
class UNetImpl : public torch::nn::Module {
 public:
  UNetImpl(int64_t in, int64_t out, const UNetConfig& config);

  // [batch, in, height, width] -> [batch, out, height, width].
  torch::Tensor forward(torch::Tensor x);

  torch::nn::ModuleList down, widen, up;  // `widen`: only where convolutions do it
  torch::nn::Conv2d head;

 private:
  torch::Tensor widened(const torch::Tensor& x, int64_t level);

  UNetConfig config_;
};
TORCH_MODULE(UNet);

}  // namespace examples
