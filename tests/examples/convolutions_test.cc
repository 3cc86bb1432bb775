// A small convolutional net whose batch is sharded learns what it learns on one device, its batch norm over the whole
// batch. So do U-Nets whose images are split by rows, and by columns, too.
#include "dtensor/scopes.h"
#include "examples/models/unet.h"
#include "examples/models/vision.h"
#include "tests/examples/against_one_device.h"

namespace dtensor {
namespace {

TEST_CASE("a convolutional net whose batch is sharded", "[examples]") {
  const ReplicateUnsupported scope;  // for what has no rule
  for (const int64_t ranks : {2, 3}) {
    const DeviceMesh mesh(World::local(ranks), {ranks}, {"dp"});
    check_training<examples::ConvNet>([] { return examples::ConvNet(4, 5); }, nullptr, mesh,
                                      {{doubles({4, 3, 9, 9}), {Shard(0)}}, {torch::randint(5, {4}), {Shard(0)}}},
                                      [](examples::ConvNet& model, const Tensors& in) {
                                        return torch::nn::functional::cross_entropy(model(in[0]), in[1]);
                                      });
  }
}

TEST_CASE("U-Nets whose images are split", "[examples]") {
  using examples::UNet, examples::Upsampling;
  const std::pair<DeviceMesh, Placements> layouts[] = {
      {DeviceMesh(World::local(2), {2}, {"rows"}), {Shard(2)}},
      {DeviceMesh(World::local(3), {3}, {"rows"}), {Shard(2)}},
      {DeviceMesh(World::local(4), {2, 2}, {"rows", "columns"}), {Shard(2), Shard(3)}},
      {DeviceMesh(World::local(4), {2, 2}, {"dp", "rows"}), {Shard(0), Shard(2)}},
  };
  for (const Upsampling upsampling : {Upsampling::kNearest, Upsampling::kBilinear, Upsampling::kTransposed}) {
    for (const auto& [mesh, split] : layouts) {
      check_training<UNet>([&] { return UNet(2, 1, examples::UNetConfig{.channels = 3, .upsampling = upsampling}); },
                           nullptr, mesh, {{doubles({2, 2, 12, 8}), split}, {doubles({2, 1, 12, 8}), split}},
                           [](UNet& model, const Tensors& in) { return torch::mse_loss(model(in[0]), in[1]); });
    }
  }
}

}  // namespace
}  // namespace dtensor
