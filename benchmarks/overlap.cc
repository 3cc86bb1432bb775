// Measures OverlapCommunication where nothing can overlap: a step of a sequence-parallel MLP on ranks of one process,
// whose exchanges are copies, with and without the scope.
//
//   ./bazelw run //benchmarks:overlap
#include <ATen/Parallel.h>
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

namespace dtensor::benchmarks {
namespace {

namespace nn = torch::nn;

struct Sizes {
  int64_t batch, tokens, width, hidden;
};

struct Mlp {
  nn::Linear up, down;
  torch::Tensor x;

  Mlp(const Sizes& s, const DeviceMesh& mesh)
      : up(s.width, s.hidden),
        down(s.hidden, s.width),
        x(distribute_tensor(torch::randn({s.batch, s.tokens, s.width}), mesh, {Shard(1)}).requires_grad_()) {
    parallelize_module(*up, mesh, {{"", ColwiseParallel()}});
    parallelize_module(*down, mesh, {{"", RowwiseParallel({.output = Shard(1)})}});
  }
  void step() {
    for (const torch::Tensor& t : {up->weight, up->bias, down->weight, down->bias, x})
      t.mutable_grad() = torch::Tensor();
    const torch::Tensor y = down(torch::relu(up(x)));
    y.backward(torch::ones_like(y));
  }
};

int run() {
  at::set_num_threads(1);
  Gates gates;
  constexpr int64_t kRanks = 4, kChunks = 4;
  for (const Sizes& s : {Sizes{4, 512, 512, 1024}, Sizes{1, 8192, 512, 1024}}) {
    const DeviceMesh mesh(World::local(kRanks), {kRanks}, {"tp"});
    const auto mlp = std::make_shared<Mlp>(s, mesh);
    const auto in_chunks = [mlp] {
      const OverlapCommunication scope({.chunks = kChunks});
      mlp->step();
    };
    const PairedTimes times = time_pairs(
        in_chunks, [mlp] { mlp->step(); }, 12);
    gates.at_most(compared(absl::StrCat("step of an MLP in ", kChunks, " chunks on ", kRanks, " ranks of one process, ",
                                        s.batch, " x ", s.tokens, " tokens, ", s.width, " x ", s.hidden),
                           "the same without chunks", times),
                  times.ratio, 1.03);
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("overlap", "Times products in chunks on ranks of one process.", argc, argv,
                                     dtensor::benchmarks::run);
}
