// Models whose rows go where an index says, embedding tables, experts, graphs, learn on a mesh what they learn on one
// device.
#include "examples/models/dlrm.h"
#include "examples/models/experts.h"
#include "examples/models/graph.h"
#include "plan/cost_model.h"
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

// As it is written by hand: each expert takes the rows of the tokens that chose it, and adds its results to theirs.
torch::Tensor loop_over_experts(const torch::Tensor& x, const torch::Tensor& choice, const torch::Tensor& gate,
                                const Tensors& up, const Tensors& down) {
  auto y = torch::zeros_like(x);
  for (size_t e = 0; e < up.size(); ++e) {
    const auto rows = (choice == static_cast<int64_t>(e)).nonzero().squeeze(1);
    const auto hidden = torch::relu(torch::linear(x.index_select(0, rows), up[e]));
    y.index_add_(0, rows, torch::linear(hidden, down[e]) * gate.index_select(0, rows).unsqueeze(1));
  }
  return y;
}

// Tokens, choices, gates, and the two weights of each expert. No token chooses the last expert.
struct ExpertsByHand {
  ExpertsByHand(int64_t tokens, int64_t width, int64_t inner, int64_t experts)
      : x(doubles({tokens, width})), choice(torch::randint(experts - 1, {tokens})), gate(doubles({tokens})) {
    for (int64_t e = 0; e < experts; ++e) {
      up.push_back(doubles({inner, width}));
      down.push_back(doubles({width, inner}));
    }
  }
  ExpertsByHand copy() const {
    ExpertsByHand result = *this;
    for (torch::Tensor* t : {&result.x, &result.choice, &result.gate}) *t = t->clone();
    for (Tensors* weights : {&result.up, &result.down}) {
      for (torch::Tensor& w : *weights) w = w.clone();
    }
    return result;
  }
  ExpertsByHand on(const DeviceMesh& mesh, const Placement& of_up, const Placement& of_down) const {
    ExpertsByHand result = *this;
    for (torch::Tensor* t : {&result.x, &result.choice, &result.gate}) *t = distribute_tensor(*t, mesh, {Shard(0)});
    for (torch::Tensor& w : result.up) w = distribute_tensor(w, mesh, {of_up});
    for (torch::Tensor& w : result.down) w = distribute_tensor(w, mesh, {of_down});
    return result;
  }
  torch::Tensor run() const { return loop_over_experts(x, choice, gate, up, down); }
  // Of the result, and of all gradients.
  Tensors train() {
    Tensors leaves = {x, gate};
    leaves.insert(leaves.end(), up.begin(), up.end());
    leaves.insert(leaves.end(), down.begin(), down.end());
    for (torch::Tensor& t : leaves) t.requires_grad_();
    Tensors results = {run()};
    results[0].square().sum().backward();
    for (const torch::Tensor& t : leaves) results.push_back(t.grad());
    return results;
  }

  torch::Tensor x, choice, gate;
  Tensors up, down;
};

TEST_CASE("a loop over experts gives what it gives on one device", "[examples]") {
  const Placement layouts[][2] = {{Replicate(), Replicate()}, {Shard(0), Shard(1)}, {Shard(0), Shard(0)}};
  const ExpertsByHand values(13, 3, 5, 4);
  for (const int64_t ranks : {4, 3}) {
    const DeviceMesh mesh(World::local(ranks), {ranks}, {"dp"});
    for (const auto& [of_up, of_down] : layouts) {
      CAPTURE(ranks, to_string(of_up), to_string(of_down));
      ExpertsByHand plain = values.copy();
      ExpertsByHand distributed = values.on(mesh, of_up, of_down);
      const Tensors expected = plain.train(), actual = distributed.train();
      for (size_t k = 0; k < expected.size(); ++k) {
        REQUIRE(expected[k].defined() == actual[k].defined());
        if (expected[k].defined()) CHECK(torch::allclose(whole(actual[k]), whole(expected[k]), 1e-9, 1e-9));
      }
    }
  }
}

// On a device that multiplies slowly beside its links, as one does with experts of the usual sizes.
TEST_CASE("in a loop over experts tokens travel, and ranks share the work", "[examples]") {
  constexpr int64_t kTokens = 1024, kWidth = 32, kInner = 512;
  constexpr int64_t kBytesOfTokens = kTokens * kWidth * static_cast<int64_t>(sizeof(double));
  const auto world = World::local(4);
  CostModel slow;
  slow.flops_per_second = 1e11;
  set_cost_model(world, slow);
  const DeviceMesh mesh(world, {4}, {"dp"});
  const ExpertsByHand values(kTokens, kWidth, kInner, 5);
  {
    const ExpertsByHand e = values.on(mesh, Replicate(), Replicate());
    const CommDebugMode comm;
    e.run();
    CHECK(comm.work_share() < 1.05);
    CHECK(comm.bytes() < 2 * kBytesOfTokens);  // three quarters of each token to its expert's ranks, and back
  }
  {
    const ExpertsByHand e = values.on(mesh, Shard(0), Shard(1));
    const CommDebugMode comm;
    e.run();
    CHECK(comm.work_share() == Approx(1));
    CHECK(comm.bytes() < 4 * kBytesOfTokens);  // to all ranks, as each has a part of every expert, and back
  }
}

}  // namespace
}  // namespace dtensor
