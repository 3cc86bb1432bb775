#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
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

}  // namespace dtensor::benchmarks
