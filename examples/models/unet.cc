#include "examples/models/unet.h"

namespace examples {

using torch::nn::functional::interpolate;
using torch::nn::functional::InterpolateFuncOptions;

UNetImpl::UNetImpl(int64_t in, int64_t out, const UNetConfig& config)
    : down(register_module("down", torch::nn::ModuleList())),
      widen(register_module("widen", torch::nn::ModuleList())),
      up(register_module("up", torch::nn::ModuleList())),
      head(register_module("head", torch::nn::Conv2d(torch::nn::Conv2dOptions(config.channels, out, 1)))),
      config_(config) {
  const bool transposed = config.upsampling == Upsampling::kTransposed;
  int64_t width = config.channels;
  down->push_back(UNetBlock(in, width));
  for (int64_t level = 0; level < config.levels; ++level, width *= 2) {
    down->push_back(UNetBlock(width, 2 * width));
    up->push_back(UNetBlock(transposed ? 2 * width : 3 * width, width));
    if (transposed) {
      widen->push_back(torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(2 * width, width, 2).stride(2)));
    }
  }
}

torch::Tensor UNetImpl::widened(const torch::Tensor& x, int64_t level) {
  if (config_.upsampling == Upsampling::kTransposed) return widen[level]->as<torch::nn::ConvTranspose2d>()->forward(x);
  const auto options = InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2});
  if (config_.upsampling == Upsampling::kNearest) return interpolate(x, options);
  return interpolate(x, InterpolateFuncOptions(options).mode(torch::kBilinear).align_corners(false));
}

torch::Tensor UNetImpl::forward(torch::Tensor x) {
  std::vector<torch::Tensor> skips;
  for (int64_t level = 0; level < config_.levels; ++level) {
    skips.push_back(down[level]->as<UNetBlock>()->forward(x));
    x = torch::max_pool2d(skips.back(), 2);
  }
  x = down[config_.levels]->as<UNetBlock>()->forward(x);
  for (int64_t level = config_.levels - 1; level >= 0; --level)
    x = up[level]->as<UNetBlock>()->forward(torch::cat({widened(x, level), skips[level]}, 1));
  return head(x);
}

}  // namespace examples
