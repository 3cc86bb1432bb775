#include "benchmarks/patterns/pattern.h"

#include <torch/nn/module.h>

#include <memory>
#include <utility>

#include "dtensor/dtensor.h"

namespace dtensor::benchmarks {
namespace {

Traffic one_call(double bytes, int64_t ranks) {
  if (ranks == 1) return {};
  return {1, bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks)};
}

}  // namespace

Traffic all_reduce(double bytes, int64_t ranks) { return one_call(2 * bytes, ranks); }
Traffic all_gather(double bytes, int64_t ranks) { return one_call(bytes, ranks); }
Traffic reduce_scatter(double bytes, int64_t ranks) { return one_call(bytes, ranks); }
Traffic all_to_all(double local_bytes, int64_t ranks) { return one_call(local_bytes, ranks); }

int64_t size_of(const DeviceMesh& mesh, const std::string& name) {
  for (const auto& dim : mesh.names()) {
    if (dim == name) return mesh.size(name);
  }
  return 1;
}

Traffic gradients(const torch::nn::Module& module, int64_t ranks) {
  Traffic sum;
  for (const auto& p : module.parameters()) {
    sum += all_reduce(static_cast<double>(DTensor(p).spec().max_local_bytes()), ranks);
  }
  return sum;
}

double bytes_of(const torch::nn::Module& module) {
  double sum = 0;
  for (const auto& p : module.parameters()) sum += static_cast<double>(DTensor(p).spec().meta().bytes());
  return sum;
}

Pattern training(const DeviceMesh& mesh, std::function<at::Tensor()> loss, const Traffic& forward,
                 const Traffic& backward) {
  const auto value = std::make_shared<at::Tensor>();
  const auto go_forward = [=, loss = std::move(loss)] {
    const MeshScope scope(mesh);
    *value = loss();
  };
  return {mesh, {{"forward", go_forward, forward}, {"backward", [=] { value->backward(); }, backward}}};
}

Pattern loop(const DeviceMesh& mesh, std::function<void()> round, const Traffic& by_hand, const Traffic& start) {
  const auto run = [=, round = std::move(round)] {
    const at::NoGradGuard no_grad;
    const MeshScope scope(mesh);
    round();
  };
  return {mesh, {{"a round", run, start + by_hand}, {"the next", run, by_hand}}};
}

}  // namespace dtensor::benchmarks
