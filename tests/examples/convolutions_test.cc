// A small convolutional net whose batch is sharded learns what it learns on one device, its batch norm over the whole
// batch.
#include "dtensor/scopes.h"
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

}  // namespace
}  // namespace dtensor
