// Tables of the times that operators take in this process.
#include "dtensor/measure_operators.h"

#include <chrono>
#include <thread>

#include "dtensor/factories.h"
#include "dtensor/predict_step.h"
#include "dtensor/redistribute.h"
#include "plan/cost_model.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Catch::Contains;
using torch::Tensor;

// What precedes an operator in a step counts for it.
void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

TEST_CASE("measure_operators: rows are by operator and amount", "[dtensor][measure_operators]") {
  const World world = World::local(2);
  const DeviceMesh mesh(world, {2}, {"tp"});
  const Tensor small = zeros({4, 8}, mesh, {Shard(0)}), large = zeros({400, 80}, mesh, {Shard(0)}),
               weight = zeros({8, 16}, mesh, {Replicate()});
  int64_t steps = 0;
  const auto step = [&] {
    ++steps;
    small.t();
    small.mm(weight);
    small.neg();
    pause();
    large.neg();
  };
  const OperatorTimes times = measure_operators({step}, world, 3);
  CHECK(steps == 1 + 3);
  REQUIRE(times.size() == 4);
  CHECK(times.count("view") == 1);
  REQUIRE(times.at("aten::neg").size() == 2);
  CHECK(times.at("aten::neg")[0].amount == 2 * 4 * (2 * 8));
  CHECK(times.at("aten::neg")[1].amount == 2 * 4 * (200 * 80));
  CHECK(times.at("aten::neg")[1].seconds >= 30e-3);
  CHECK(times.at("aten::neg")[0].seconds < 30e-3);
  REQUIRE(times.at("aten::mm float32").size() == 1);
  CHECK(times.at("aten::mm float32")[0].amount == 2 * 2 * 8 * 16);
  CHECK(times.at("other").size() == 2);  // of all that are no views and no products
}

TEST_CASE("measure_operators: operators that communicate are left out", "[dtensor][measure_operators]") {
  const World world = World::local(2);
  const DeviceMesh mesh(world, {2}, {"tp"});
  const Tensor sharded = zeros({4, 8}, mesh, {Shard(0)}), partial = zeros({6, 8}, mesh, {Partial()});
  const OperatorTimes times = measure_operators({[&] {
                                                  (partial + partial).exp();  // of the sum over both ranks
                                                  sharded.exp();
                                                }},
                                                world, 3);
  REQUIRE(times.at("aten::exp").size() == 1);
  CHECK(times.at("aten::exp")[0].amount == 2 * 4 * (2 * 8));
}

TEST_CASE("measure_operators: the elements of a list share the time of its call by their sizes",
          "[dtensor][measure_operators]") {
  const World world = World::local(1);
  const DeviceMesh mesh(world, {1}, {"all"});
  const std::vector<Tensor> list = {zeros({1024}, mesh), zeros({3072}, mesh), zeros({7168}, mesh)};
  const OperatorTimes times = measure_operators({[&] {
                                                  pause();
                                                  torch::_foreach_neg(list);
                                                }},
                                                world, 3);
  const std::vector<OperatorTime>& row = times.at("aten::neg");
  REQUIRE(row.size() == 3);
  CHECK(row[0].seconds + row[1].seconds + row[2].seconds >= 30e-3);
  CHECK(row[1].seconds == Approx(2 * row[0].seconds));  // 8 KiB each for the start, and 8, 24 and 56 KiB
  CHECK(row[2].seconds == Approx(4 * row[0].seconds));
}

TEST_CASE("measure_operators: a redistribution that the program asks for is no part of the next operator",
          "[dtensor][measure_operators]") {
  const World world = World::local(2);
  const DeviceMesh mesh(world, {2}, {"tp"});
  const Tensor x = zeros({4, 8}, mesh, {Shard(0)});
  const OperatorTimes times = measure_operators({[&] {
                                                  pause();
                                                  redistribute(x, {Replicate()}).neg();
                                                }},
                                                world, 3);
  REQUIRE(times.at("aten::neg").size() == 1);
  CHECK(times.at("aten::neg")[0].seconds < 30e-3);
}

TEST_CASE("measure_operators: predictions of a step from its own times", "[dtensor][measure_operators]") {
  const World world = World::local(2);
  const DeviceMesh mesh(world, {2}, {"tp"});
  const Tensor x = zeros({4, 8}, mesh, {Shard(0)}).requires_grad_();
  const auto step = [&] {
    const Tensor y = x.square();
    pause();
    y.sum().backward();
  };
  CostModel model;
  model.operators = measure_operators({step}, world, 3);
  set_cost_model(world, model);
  const double predicted = predict_step(step, world).operator_seconds;
  CHECK(predicted >= 30e-3);
  CHECK(predicted < 300e-3);
}

TEST_CASE("measure_operators: rejected arguments", "[dtensor][measure_operators]") {
  const World world = World::local(2);
  const auto step = [] {};
  CHECK_THROWS_WITH(measure_operators({}, world), Contains("there are no steps"));
  CHECK_THROWS_WITH(measure_operators({step, nullptr}, world), Contains("a step is an empty function"));
  CHECK_THROWS_WITH(measure_operators({step}, world, 0), Contains("`repetitions` is 0; give at least 1"));
  CHECK_THROWS_WITH(measure_operators({step}, World()), Contains("the world is undefined"));
  CHECK_THROWS_WITH(measure_operators({step}, World::abstract(2)), Contains("abstract(2"));
}

}  // namespace
}  // namespace dtensor
