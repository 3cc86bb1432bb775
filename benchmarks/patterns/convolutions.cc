#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
#include "examples/models/unet.h"
#include "examples/models/vision.h"

namespace dtensor::benchmarks {

Pattern convolutional_net(const DeviceMesh& mesh, int64_t scale) {
  using examples::over;
  const int64_t m = size_of(mesh, "dp"), channels = 8 * scale, classes = 10, batch = 2;
  examples::ConvNet model(channels, classes);
  distribute_module(*model, mesh);
  const auto images = randn({batch * m, 3, 16, 16}, mesh, over(mesh, "dp", Shard(0)));
  const auto labels = zeros({batch * m}, mesh, over(mesh, "dp", Shard(0)), {.dtype = torch::kLong});
  const Traffic moments = all_reduce(static_cast<double>((2 * channels + 1) * 4), m);
  return training(
      mesh, [model, images, labels]() mutable { return torch::nn::functional::cross_entropy(model(images), labels); },
      moments + all_reduce(4, m), moments + gradients(*model, m));
}

namespace {

// One exchange of a row of each neighbour.
Traffic rows_beside(int64_t batch, int64_t channels, int64_t width, int64_t ranks) {
  return ranks == 1 ? Traffic() : Traffic{1, static_cast<double>(2 * batch * channels * width * 4)};
}

}  // namespace

Pattern unet(const examples::UNetConfig& config, const DeviceMesh& mesh, int64_t scale) {
  using examples::over, examples::Upsampling;
  const int64_t m = size_of(mesh, "rows"), batch = 2, width = 16 * scale, in = 3, out = 1;
  examples::UNetConfig scaled = config;
  scaled.channels *= scale;
  examples::UNet model(in, out, scaled);
  distribute_module(*model, mesh);
  const auto rows = over(mesh, "rows", Shard(2));
  const auto images = randn({batch, in, 8 * scale * m, width}, mesh, rows);
  const auto fields = randn({batch, out, 8 * scale * m, width}, mesh, rows);
  // Each 3 x 3 convolution needs a row of each neighbour, and returns one of the gradient: at each level two on the way
  // down, where the first of all needs no gradient of the images, and two on the way up.
  Traffic forward = rows_beside(batch, in, width, m), backward;
  const auto both_ways = [&](int64_t channels, int64_t at_width) {
    forward += rows_beside(batch, channels, at_width, m);
    backward += rows_beside(batch, channels, at_width, m);
  };
  both_ways(scaled.channels, width);
  for (int64_t level = 0, c = scaled.channels, w = width; level < scaled.levels; ++level, c *= 2, w /= 2) {
    for (const int64_t channels : {c, 2 * c}) both_ways(channels, w / 2);  // of the block below
    if (config.upsampling == Upsampling::kBilinear) both_ways(2 * c, w / 2);
    for (const int64_t channels : {config.upsampling == Upsampling::kTransposed ? 2 * c : 3 * c, c})
      both_ways(channels, w);
  }
  return training(
      mesh, [model, images, fields]() mutable { return torch::mse_loss(model(images), fields); }, forward,
      backward + gradients(*model, m));
}

}  // namespace dtensor::benchmarks
