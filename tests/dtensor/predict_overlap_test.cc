// predict_step(): collectives that go on beside operators, and beside collectives at another level.
#include <torch/nn.h>

#include <algorithm>
#include <string>
#include <utility>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/fully_shard.h"
#include "dtensor/gradient_buckets.h"
#include "dtensor/predict_step.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "mesh/world.h"
#include "plan/cost_model.h"
#include "tests/dtensor/parallel_models.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using testing::round_numbers;
using torch::Tensor;

// Ranks of nodes of 4, and operators that take 1 s each: products and collectives take their usual, far shorter times.
World slow_operators() {
  const World world = World::abstract(8);
  CostModel model = round_numbers();
  model.operator_latency = 1;
  set_cost_model(world, std::move(model));
  return world;
}

// So large that its all-gather takes longer than an operator.
Tensor large(const DeviceMesh& mesh, Placements placements) {
  return zeros({int64_t{1} << 20, int64_t{1} << 14}, mesh, placements);
}

// A tensor that takes long to gather, and a small one.
struct OnEightRanks {
  World world = slow_operators();
  DeviceMesh mesh{world, {8}, {"dp"}};
  Tensor t = large(mesh, {Shard(0)}), other = zeros({2}, mesh, {Replicate()});
};

Tensor gathered_later(const Tensor& t) {
  return redistribute(t, Placements(DTensor(t).mesh().ndim(), Replicate()), {.async_op = true});
}

TEST_CASE("predict_step: a gather with async_op goes on beside operators until it is read", "[dtensor][predict_step]") {
  const OnEightRanks on;
  const auto step = [&](bool async, int operators) {
    return predict_step(
        [&] {
          const Tensor whole = redistribute(on.t, {Replicate()}, {.async_op = async});
          for (int i = 0; i < operators; ++i) torch::relu(on.other);
          whole.view({-1}).slice(0, 0, 2).add(on.other);
        },
        on.world);
  };
  const StepPrediction waits = step(false, 3), beside = step(true, 3);
  CAPTURE(waits.to_string(), beside.to_string());
  const double gather = waits.communication_seconds();
  CHECK(waits.overlapped_seconds == 0);
  CHECK(beside.communication_seconds() == gather);
  REQUIRE(gather > 3.5);
  CHECK(beside.overlapped_seconds == Approx(3));
  CHECK(beside.seconds() == Approx(gather + 1));
  CHECK(beside.to_string().find("overlapped ") != std::string::npos);
  CHECK(waits.to_string().find("overlapped ") == std::string::npos);
  // All of it is beside, where the operators take longer.
  const StepPrediction longer = step(true, 2 + static_cast<int>(gather));
  CHECK(longer.overlapped_seconds == Approx(gather));
}

TEST_CASE("predict_step: a step ends with its last collective, also if nothing reads its result",
          "[dtensor][predict_step]") {
  const OnEightRanks on;
  const StepPrediction p = predict_step(
      [&] {
        torch::relu(on.other);
        gathered_later(on.t);
      },
      on.world);
  CHECK(p.overlapped_seconds == 0);
  CHECK(p.seconds() == Approx(1 + p.communication_seconds()));
}

TEST_CASE("predict_step: collectives at one level follow one another, at two levels they go on beside each other",
          "[dtensor][predict_step]") {
  const World world = slow_operators();
  const DeviceMesh of_nodes(world, {2}, {"dp"}, {0, 4}), of_node(world, {4}, {"tp"}, {0, 1, 2, 3});
  const Tensor between = large(of_nodes, {Shard(0)}), within = large(of_node, {Shard(0)}),
               other = zeros({2}, of_node, {Replicate()});
  const auto both = [&](const Tensor& a, const Tensor& b) {
    return predict_step(
        [&] {
          const Tensor first = gathered_later(a), second = gathered_later(b);
          torch::relu(other);
        },
        world);
  };
  const StepPrediction same = both(within, within), different = both(between, within);
  CHECK(same.seconds() == Approx(same.communication_seconds()));
  CHECK(same.overlapped_seconds == Approx(1));
  REQUIRE(different.communication.size() == 2);
  CHECK(different.seconds() == Approx(different.communication.front().seconds));
}

TEST_CASE("predict_step: a collective that operators wait for begins after those under way at its level",
          "[dtensor][predict_step]") {
  const OnEightRanks on;
  const StepPrediction p = predict_step(
      [&] {
        const Tensor later = gathered_later(on.t);
        torch::relu(on.other);
        redistribute(large(on.mesh, {Shard(1)}), {Replicate()});
      },
      on.world);
  CAPTURE(p.to_string());
  CHECK(p.seconds() >= p.communication_seconds());
  CHECK(p.overlapped_seconds >= 1);
}

// A step of three layers, whose groups are gathered ahead and whose gradients are reduced in backward, or not.
StepTimeline step_of_groups(bool overlap) {
  const World world = World::abstract(8);
  set_cost_model(world, round_numbers());
  const DeviceMesh mesh(world, {8}, {"dp"});
  set_gradient_buckets(world, {.overlap = overlap});
  const MeshScope on_mesh(mesh);
  torch::nn::Sequential layers;
  for (int i = 0; i < 3; ++i) layers->push_back(testing::Mlp(64, 256));
  for (const auto& layer : *layers) fully_shard(*layer.ptr(), mesh);
  layers->push_back(torch::nn::Linear(64, 64));
  fully_shard(*layers, mesh, {.prefetch = overlap});
  const Tensor x = zeros({4096, 64}, mesh, {Shard(0)});
  const auto step = [&] {
    auto forward = layers;
    forward->forward(x).square().mean().backward();
    layers->zero_grad();
  };
  step();
  return predict_timeline(step, world);
}

TEST_CASE("predict_step: groups gathered ahead and gradients reduced in backward hide part of their time",
          "[dtensor][predict_step]") {
  const StepTimeline one_by_one = step_of_groups(false), beside = step_of_groups(true);
  CAPTURE(one_by_one.step.to_string(), beside.step.to_string());
  CHECK(one_by_one.step.overlapped_seconds == 0);
  CHECK(beside.step.communication_seconds() == Approx(one_by_one.step.communication_seconds()));
  CHECK(beside.step.overlapped_seconds > beside.step.communication_seconds() / 4);
  CHECK(beside.step.seconds() < one_by_one.step.seconds());
  double end = 0;
  for (const StepSpan& span : beside.spans) {
    CHECK(span.begin <= span.end);
    if (span.beside) CHECK(span.kind == StepSpan::Kind::kCollective);
    end = std::max(end, span.end);
  }
  CHECK(end == Approx(beside.step.seconds()));
  CHECK(beside.to_svg().find("beside them") != std::string::npos);
  CHECK(one_by_one.to_svg().find("beside them") == std::string::npos);
}

}  // namespace
}  // namespace dtensor
