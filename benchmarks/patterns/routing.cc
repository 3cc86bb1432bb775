// Rows that go where an index says: experts, graphs.
#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/experts.h"
#include "examples/models/graph.h"

namespace dtensor::benchmarks {
namespace {

constexpr int64_t kGraphLayers = 2, kDegree = 8;

int64_t nodes_of(const DeviceMesh& mesh, int64_t scale) { return 128 * scale * mesh.size(); }

}  // namespace

Pattern experts(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size("ep"), tokens = 32 * scale;
  examples::ExpertsConfig c;
  c.width *= scale;
  c.hidden *= scale;
  c.experts = n;
  c.capacity = 2 + tokens / n;
  examples::Experts model(c);
  distribute_module(*model, mesh, examples::shard_experts);
  const auto x = randn({n, tokens, c.width}, mesh, {Shard(0)}, {.requires_grad = true});  // a group of each rank
  const Traffic exchange = all_to_all(static_cast<double>(c.experts * c.capacity * c.width * 4), n);
  const Traffic router = all_reduce(bytes_of(*model->router), n);
  return training(
      mesh, [model, x]() mutable { return model(x).square().mean(); }, 2 * exchange + all_reduce(4, n),
      2 * exchange + router);
}

Pattern graph_of_edges(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), nodes = nodes_of(mesh, scale), width = 16 * scale;
  examples::MessagePassing model(width);
  distribute_module(*model, mesh);
  const auto x = randn({nodes, width}, mesh, {Shard(0)});
  const auto ends = zeros({nodes * kDegree}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  const auto bytes = static_cast<double>(nodes * width * 4);
  // An edge may be with neither of its nodes: what is read is gathered, what is added goes to its rows.
  const Traffic through = kGraphLayers * (all_gather(bytes, n) + reduce_scatter(bytes, n));
  return training(
      mesh,
      [=]() mutable {
        auto h = x;
        for (int64_t i = 0; i < kGraphLayers; ++i) h = model->along_edges(h, ends, ends);
        return h.square().mean();
      },
      through + all_reduce(4, n), through + gradients(*model, n));
}

Pattern graph_of_neighbours(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), nodes = nodes_of(mesh, scale), width = 16 * scale;
  examples::MessagePassing model(width);
  distribute_module(*model, mesh);
  const auto x = randn({nodes, width}, mesh, {Shard(0)});
  const auto neighbours = zeros({nodes, kDegree}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  const auto bytes = static_cast<double>(nodes * width * 4);
  return training(
      mesh,
      [=]() mutable {
        auto h = x;
        for (int64_t i = 0; i < kGraphLayers; ++i) h = model->from_neighbours(h, neighbours);
        return h.square().mean();
      },
      kGraphLayers * all_gather(bytes, n) + all_reduce(4, n),
      kGraphLayers * reduce_scatter(bytes, n) + gradients(*model, n));
}

}  // namespace dtensor::benchmarks
