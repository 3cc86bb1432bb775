// Models whose rows go where an index says, embedding tables, experts, graphs, learn on a mesh what they learn on one
// device.
#include "examples/models/dlrm.h"
#include "examples/models/experts.h"
#include "examples/models/graph.h"
#include "tests/examples/against_one_device.h"

namespace dtensor {
namespace {

TEST_CASE("a recommendation model, its tables by rows and by columns", "[examples]") {
  examples::DLRMConfig c;
  c.tables = 3;
  for (const auto& [ranks, rows, width] : {std::tuple<int64_t, int64_t, int64_t>{4, 32, 8}, {3, 31, 7}, {4, 3, 2}}) {
    c.rows = rows;
    c.width = width;
    const DeviceMesh mesh(World::local(ranks), {ranks}, {"all"});
    for (const PartitionFn shard : {examples::shard_tables_by_rows, examples::shard_tables_by_columns}) {
      check_training<examples::DLRM>([=] { return examples::DLRM(c); }, shard, mesh,
                                     {{doubles({8, c.dense}), {Shard(0)}},
                                      {torch::randint(c.rows, {8, c.tables, 3}), {Shard(0)}},
                                      {torch::rand({8}, torch::kDouble).round(), {Shard(0)}}},
                                     [](examples::DLRM& model, const Tensors& in) {
                                       const auto scores = model(in[0], in[1]);
                                       return torch::binary_cross_entropy_with_logits(scores, in[2]);
                                     });
    }
  }
}

TEST_CASE("a mixture of experts", "[examples]") {
  examples::ExpertsConfig c;
  for (const int64_t capacity : {9, 2}) {  // room for all; tokens that no expert takes
    c.capacity = capacity;
    for (const DeviceMesh& mesh : {DeviceMesh(World::local(4), {4}, {"ep"}), DeviceMesh(World::local(3), {3}, {"ep"}),
                                   DeviceMesh(World::local(4), {2, 2}, {"dp", "ep"})}) {
      check_training<examples::Experts>(
          [=] { return examples::Experts(c); }, examples::shard_experts, mesh,
          {{doubles({4, 9, c.width}), Placements(static_cast<size_t>(mesh.ndim()), Shard(0))}},
          [](examples::Experts& model, const Tensors& in) { return model(in[0]).square().mean(); });
    }
  }
}

TEST_CASE("messages on a graph", "[examples]") {
  using examples::MessagePassing;
  const int64_t nodes = 11, width = 6;
  const auto x = doubles({nodes, width});
  const auto edges = torch::randint(nodes, {2, 40}), neighbours = torch::randint(nodes, {nodes, 3});
  for (const int64_t ranks : {4, 3}) {
    const DeviceMesh mesh(World::local(ranks), {ranks}, {"rows"});
    check_training<MessagePassing>([=] { return MessagePassing(width); }, nullptr, mesh,
                                   {{x, {Shard(0)}}, {edges[0], {Shard(0)}}, {edges[1], {Shard(0)}}},
                                   [](MessagePassing& model, const Tensors& in) {
                                     const auto once = model->along_edges(in[0], in[1], in[2]);
                                     return model->along_edges(once, in[1], in[2]).square().mean();
                                   });
    check_training<MessagePassing>([=] { return MessagePassing(width); }, nullptr, mesh,
                                   {{x, {Shard(0)}}, {neighbours, {Shard(0)}}},
                                   [](MessagePassing& model, const Tensors& in) {
                                     const auto once = model->from_neighbours(in[0], in[1]);
                                     return model->from_neighbours(once, in[1]).square().mean();
                                   });
  }
}

}  // namespace
}  // namespace dtensor
