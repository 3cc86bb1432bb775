// Gradients of one backward are reduced together, and nobody can tell but by the number of collectives.
#include "dtensor/extend/gradient_bucket.h"

#include <torch/autograd.h>
#include <torch/nn.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_contracts.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

torch::nn::Sequential make_model() {
  torch::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  model->to(torch::kDouble);
  return model;
}

Tensor batch() { return torch::arange(50, torch::kDouble).view({10, 5}).sin(); }
Tensor loss_of(torch::nn::Sequential& model, const Tensor& x) { return model->forward(x).pow(2).mean(); }

// Every parameter's gradient is that of one device, in the parameter's layout.
void check_gradients(torch::nn::Sequential& model, double times = 1) {
  torch::nn::Sequential plain = make_model();
  loss_of(plain, batch()).backward();
  const auto expected = plain->parameters();
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    INFO("parameter " << i);
    REQUIRE(parameters[i].grad().defined());
    CHECK(DTensor(parameters[i].grad()).placements() == DTensor(parameters[i]).placements());
    CHECK(at::allclose(full_tensor(parameters[i].grad()), expected[i].grad() * times));
  }
}

struct Step {
  torch::nn::Sequential model = make_model();
  DeviceMesh mesh{World::local(4), {4}, {"dp"}};
  Tensor x;
  Step() {
    distribute_module(*model, mesh);
    x = distribute_tensor(batch(), mesh, {Shard(0)});
  }
  std::vector<CommEvent> backward() {
    const Tensor loss = loss_of(model, x);
    CommDebugMode comm;
    loss.backward();
    return comm.events();
  }
};

}  // namespace

TEST_CASE("gradient bucket: a data-parallel step reduces all gradients at once, and says whose") {
  Step step;
  const auto events = step.backward();
  REQUIRE(events.size() == 1);
  CHECK(events[0].collective == Collective::kAllReduce);
  CHECK(events[0].backward);
  CHECK(events[0].cause.implicit);
  CHECK(events[0].cause.op == "gradient");
  CHECK(events[0].more_tensors == 3);
  CHECK_THAT(events[0].cause.argument, Catch::EndsWith(" and 3 more"));
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: over the meshes of a two-dimensional job") {
  torch::nn::Sequential model = make_model();
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  int number = 0;
  distribute_module(*model, mesh, [&](const std::string&, torch::nn::Module& module, const DeviceMesh& m) {
    for (auto& p : module.named_parameters(/*recurse=*/false)) {
      const int dim = number++ < 2 ? 0 : 1;  // column-parallel, then row-parallel
      const Placement over_tp = p.value().dim() > dim ? Placement(Shard(dim)) : Placement(Replicate());
      shard_parameter(module, p.key(), m, {Replicate(), over_tp});
    }
  });
  const Tensor x = distribute_tensor(batch(), mesh, {Shard(0), Replicate()});
  const Tensor loss = loss_of(model, x);
  CommDebugMode comm;
  loss.backward();
  int gradients = 0;
  for (const CommEvent& e : comm.events()) gradients += e.cause.op == "gradient" ? 1 : 0;
  CHECK(gradients == 1);
  check_gradients(model);
}

TEST_CASE("gradient bucket: who could see a gradient before finds it in its layout") {
  Step step;
  const auto parameters = step.model->parameters();
  SECTION("a hook of one parameter") {
    int calls = 0;
    parameters[2].register_hook([&](const Tensor& g) {
      ++calls;
      CHECK(DTensor(g).placements() == Placements{Replicate()});
      return g;
    });
    CHECK(step.backward().size() == 2);
    CHECK(calls == 1);
    check_gradients(step.model);
  }
  SECTION("a gradient that is there: it is added to") {
    step.backward();
    CHECK(step.backward().size() == 4);
    check_gradients(step.model, 2);
  }
  SECTION("gradients of chosen tensors") {
    const auto gradients = torch::autograd::grad({loss_of(step.model, step.x)}, parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {
      CHECK(DTensor(gradients[i]).placements() == Placements{Replicate()});
      CHECK_FALSE(parameters[i].grad().defined());
    }
  }
  SECTION("backward of chosen tensors") {
    loss_of(step.model, step.x).backward({}, std::nullopt, false, parameters);
    check_gradients(step.model);
  }
  SECTION("gradients of gradients") {
    loss_of(step.model, step.x).backward({}, true, /*create_graph=*/true);
    check_gradients(step.model);
    CHECK(parameters[0].grad().requires_grad());
  }
}

TEST_CASE("gradient bucket: a backward that fails leaves nothing to the next one") {
  Step step;
  // Fails when all but the first layer's gradients are there.
  const Tensor y = step.model[0]->as<torch::nn::Linear>()->forward(step.x);
  const Tensor loss = step.model[2]->as<torch::nn::Linear>()->forward(y.tanh()).pow(2).mean();
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("no further"); });
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("no further"));
  for (const Tensor& p : step.model->parameters()) p.mutable_grad() = Tensor();
  CHECK(step.backward().size() == 1);
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: contracts hold at the end of the backward, too") {
  Step step;
  {
    const Tensor loss = loss_of(step.model, step.x);
    CommBudget budget({.max_calls = 1});
    loss.backward();
  }
  for (const Tensor& p : step.model->parameters()) p.mutable_grad() = Tensor();
  const Tensor loss = loss_of(step.model, step.x);
  ForbidImplicitCommunication none;
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("gradient") && Catch::Contains("DelayGradientReduction"));
}

TEST_CASE("gradient bucket: what is split is reduced at once, so that waiting takes no memory") {
  Step step;
  for (auto& module : step.model->children()) {
    for (const auto& p : module->named_parameters()) shard_parameter(*module, p.key(), step.mesh, {Shard(0)});
  }
  const auto events = step.backward();
  int gradients = 0;
  for (const CommEvent& e : events) {
    if (e.cause.op != "gradient") continue;
    ++gradients;
    CHECK(e.more_tensors == 0);
  }
  CHECK(gradients > 0);
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: as many bytes at once as a bucket holds") {
  const DeviceMesh mesh(World::abstract(1024), {1024}, {"dp"});
  std::vector<Tensor> weights;
  const int64_t rows = 3 << 10, width = 1 << 10;  // 12 MiB each: two fit
  for (int i = 0; i < 5; ++i) weights.push_back(zeros({rows, width}, mesh, {Replicate()}, {.requires_grad = true}));
  const Tensor x = zeros({4096, rows}, mesh, {Shard(0)});
  Tensor sum = zeros({4096, width}, mesh, {Shard(0)});
  for (const Tensor& w : weights) sum = sum + x.mm(w);
  const Tensor loss = sum.sum();
  CommDebugMode comm;
  loss.backward();
  std::vector<int> tensors;
  for (const CommEvent& e : comm.events()) tensors.push_back(e.more_tensors + 1);
  CHECK(tensors == std::vector<int>{2, 2, 1});
  for (const Tensor& w : weights) CHECK(DTensor(w.grad()).placements() == Placements{Replicate()});
}

TEST_CASE("gradient bucket: backwards of several threads have one each") {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Step step;
      const auto events = step.backward();
      good += events.size() == 1 && DTensor(step.model->parameters()[0].grad()).placements() == Placements{Replicate()};
    });
  }
  for (auto& t : threads) t.join();
  CHECK(good == 4);
}

}  // namespace dtensor
