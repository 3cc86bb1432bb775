#include <torch/nn.h>

#include <algorithm>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/decoder.h"
#include "examples/models/layouts.h"

namespace dtensor::benchmarks {

namespace {

struct Setup {
  examples::Decoder model{nullptr};
  at::Tensor x;
  Traffic reductions;  // two of activations a layer
};

Setup set_up(examples::DecoderConfig config, const DeviceMesh& mesh, int64_t scale, const Placement& tokens) {
  const int64_t m = size_of(mesh, "dp"), n = size_of(mesh, "tp"), batch = 4, length = 16 * scale;
  config.width *= scale;
  Setup setup{examples::Decoder(config), {}, {}};
  distribute_module(*setup.model, mesh, examples::shard_decoder);
  Placements placements = examples::over(mesh, "dp", Shard(0));
  for (size_t d = 0; d < placements.size(); ++d) {
    if (mesh.names()[d] == "tp") placements[d] = tokens;
  }
  setup.x = randn({batch * m, length, config.width}, mesh, placements);
  setup.reductions = 2 * config.layers * all_reduce(static_cast<double>(batch * length * config.width * 4), n);
  return setup;
}

}  // namespace

Pattern decoder(const examples::DecoderConfig& config, const DeviceMesh& mesh, int64_t scale) {
  const Setup s = set_up(config, mesh, scale, Replicate());
  const int64_t m = size_of(mesh, "dp");
  return training(
      mesh, [model = s.model, x = s.x]() mutable { return model(x).square().mean(); }, s.reductions + all_reduce(4, m),
      s.reductions + gradients(*s.model, m));
}

Pattern sequence_parallel(const examples::DecoderConfig& config, const DeviceMesh& mesh, int64_t scale) {
  const Setup s = set_up(config, mesh, scale, Shard(1));
  const int64_t m = size_of(mesh, "dp"), n = size_of(mesh, "tp");
  // In the place of each all-reduce a reduce-scatter and an all-gather; what every rank adds up over its tokens alone.
  Traffic pieces = s.reductions, norms;
  pieces.calls *= 2;
  for (const auto& p : s.model->named_parameters()) {
    const auto& placements = DTensor(p.value()).placements();
    const bool is_whole =
        std::none_of(placements.begin(), placements.end(), [](const Placement& q) { return q.is_shard(); });
    if (is_whole) norms += all_reduce(static_cast<double>(p.value().numel() * 4), n);
  }
  return training(
      mesh, [model = s.model, x = s.x]() mutable { return model(x).square().mean(); }, pieces + all_reduce(4, m * n),
      pieces + norms + gradients(*s.model, m));
}

}  // namespace dtensor::benchmarks
