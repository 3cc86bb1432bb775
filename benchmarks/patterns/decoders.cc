#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/decoder.h"
#include "examples/models/layouts.h"

namespace dtensor::benchmarks {

Pattern decoder(const examples::DecoderConfig& sizes, const DeviceMesh& mesh, int64_t scale) {
  using examples::over;
  const int64_t m = size_of(mesh, "dp"), n = size_of(mesh, "tp"), batch = 4, length = 16 * scale;
  examples::DecoderConfig config = sizes;
  config.width *= scale;
  examples::Decoder model(config);
  distribute_module(*model, mesh, examples::shard_decoder);
  const auto x = randn({batch * m, length, config.width}, mesh, over(mesh, "dp", Shard(0)));
  const Traffic through_blocks =
      2 * config.layers * all_reduce(static_cast<double>(batch * length * config.width * 4), n);
  return training(
      mesh, [model, x]() mutable { return model(x).square().mean(); }, through_blocks + all_reduce(4, m),
      through_blocks + gradients(*model, m));
}

}  // namespace dtensor::benchmarks
