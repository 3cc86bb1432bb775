// Steps with sharded states against steps of the same optimizer on one device.
#include "dtensor/zero_redundancy_optimizer.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

// Sizes that four ranks cannot share evenly, and a parameter with fewer elements than ranks.
torch::nn::Sequential make_optimized_layers() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(6, 7), torch::nn::Tanh(), torch::nn::Linear(7, 8), torch::nn::Tanh(),
                              torch::nn::Linear(8, 3));
  model->to(torch::kDouble);
  return model;
}

Tensor batch(int64_t i) { return torch::arange(48 * i, 48 * (i + 1), torch::kDouble).view({8, 6}).sin(); }

// Over tp by rows and columns; everything is replicated over dp.
void shard_optimized_layers(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh) {
  if (name == "0") shard_parameter(module, "weight", mesh, {Replicate(), Shard(0)});
  if (name == "2") shard_parameter(module, "weight", mesh, {Replicate(), Shard(1)});
}

struct Distributed {
  World world = World::local(8);
  DeviceMesh mesh{world, {4, 2}, {"dp", "tp"}};
  torch::nn::Sequential model = make_optimized_layers();
  Distributed() { distribute_module(*model, mesh, shard_optimized_layers); }

  Tensor loss(int64_t step) {
    return model->forward(distribute_tensor(batch(step), mesh, {Shard(0), Replicate()})).pow(2).mean();
  }
};

void check_parameters(torch::nn::Sequential& model, torch::nn::Sequential& plain) {
  for (const auto& p : plain->named_parameters()) {
    INFO(p.key());
    const Tensor actual = model->named_parameters()[p.key()];
    CHECK(DTensor(actual).placements()[0] == Replicate());
    CHECK(torch::allclose(full_tensor(actual), p.value(), 1e-9, 1e-11));
    for (const Tensor& part : DTensor(actual).locals()) CHECK(part.defined());
  }
}

template <typename Optimizer, typename Options>
void check_steps(const Options& options, bool delayed) {
  INFO(typeid(Optimizer).name() << (delayed ? ", Partial gradients" : ""));
  torch::nn::Sequential plain = make_optimized_layers();
  Optimizer plain_optimizer(plain->parameters(), options);
  Distributed d;
  ZeroRedundancyOptimizer<Optimizer> optimizer({.mesh_dim = "dp"}, d.model->parameters(), options);
  for (int64_t step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    const Tensor expected = plain->forward(batch(step)).pow(2).mean();
    expected.backward();
    plain_optimizer.step();

    optimizer.zero_grad();
    const Tensor loss = d.loss(step);
    CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-9));
    if (delayed) {
      const DelayGradientReduction delay;
      loss.backward();
    } else {
      loss.backward();
    }
    CommDebugMode comm;
    optimizer.step();
    // Partial gradients may have addends over tp, too.
    const auto count_over_dp = [&](Collective c) {
      const auto& events = comm.events();
      return std::count_if(events.begin(), events.end(),
                           [&](const CommEvent& e) { return e.collective == c && e.mesh_dims == "dp"; });
    };
    CHECK(count_over_dp(Collective::kAllGather) == 1);
    CHECK(count_over_dp(Collective::kReduceScatter) == (delayed ? 1 : 0));
    CHECK(comm.count("all_reduce") == 0);
    if (!delayed) CHECK(comm.total() == 1);
    for (const CommRow& row : comm.rows()) CHECK(!row.implicit);
    check_parameters(d.model, plain);
  }
}

TEST_CASE("three steps of each optimizer with sharded states equal those on one device, for one all_gather each") {
  for (const bool delayed : {false, true}) {
    check_steps<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01), delayed);
    check_steps<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true).weight_decay(0.01), delayed);
    check_steps<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2), delayed);
    check_steps<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true), delayed);
    check_steps<torch::optim::Adagrad>(torch::optim::AdagradOptions(1e-2), delayed);
  }
}

TEST_CASE("a rank keeps one n-th of the states, and nothing else is left of a step") {
  const World world = World::local(4);
  const DeviceMesh mesh(world, {4}, {"dp"});
  torch::nn::Linear layer(16, 64);
  distribute_module(*layer, mesh);
  const int64_t parameter_bytes = (16 * 64 + 64) * 4;
  torch::optim::AdamW whole(layer->parameters(), 1e-3);
  ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer({}, layer->parameters(), 1e-3);
  layer(distribute_tensor(torch::ones({8, 16}), mesh, {Shard(0)})).sum().backward();
  forget_remembered(world);
  const int64_t before = world.memory().live_bytes();
  optimizer.step();
  CHECK(world.memory().live_bytes() - before == 2 * parameter_bytes / 4);
  whole.step();
  CHECK(world.memory().live_bytes() - before == 2 * parameter_bytes / 4 + 2 * parameter_bytes);
}

TEST_CASE("parameters are gathered one by one if the limit of buckets is 0") {
  Distributed d;
  limit_gradient_bucket_bytes(d.world, 0);
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer({.mesh_dim = "dp"}, d.model->parameters(), 0.1);
  d.loss(0).backward();
  CommDebugMode comm;
  optimizer.step();
  CHECK(comm.count("all_gather") == 6);
  CHECK(comm.total() == 6);
}

TEST_CASE("sharded states are saved and loaded, by either kind of optimizer, and training goes on alike") {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/optimizer.pt";
  torch::nn::Sequential plain = make_optimized_layers();
  torch::optim::AdamW plain_optimizer(plain->parameters(), 1e-2);
  Distributed first;
  ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer({.mesh_dim = "dp"}, first.model->parameters(), 1e-2);
  plain->forward(batch(0)).pow(2).mean().backward();
  plain_optimizer.step();
  first.loss(0).backward();
  optimizer.step();
  save(optimizer, path);

  Distributed second;
  load_state_dict(*second.model, state_dict(*first.model));
  ZeroRedundancyOptimizer<torch::optim::AdamW> again({.mesh_dim = "dp"}, second.model->parameters(), 1e-2);
  load(again, path);
  Distributed third;
  load_state_dict(*third.model, state_dict(*first.model));
  torch::optim::AdamW usual(third.model->parameters(), 1e-2);
  load(usual, path);

  plain_optimizer.zero_grad();
  plain->forward(batch(1)).pow(2).mean().backward();
  plain_optimizer.step();
  second.loss(1).backward();
  CommDebugMode comm;
  again.step();
  CHECK(comm.total() == 1);
  check_parameters(second.model, plain);
  third.loss(1).backward();
  usual.step();
  check_parameters(third.model, plain);
}

TEST_CASE("a step on 64 abstract ranks records its communication and the bytes of the states") {
  const World world = World::abstract(64);
  const DeviceMesh mesh(world, {16, 4}, {"dp", "tp"});
  torch::nn::Linear layer(64, 32);
  distribute_module(*layer, mesh, [](const std::string&, torch::nn::Module& m, const DeviceMesh& on) {
    shard_parameter(m, "weight", on, {Replicate(), Shard(0)});
    shard_parameter(m, "bias", on, {Replicate(), Shard(0)});
  });
  ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer({.mesh_dim = "dp"}, layer->parameters(), 1e-3);
  layer(zeros({32, 64}, mesh, {Shard(0), Replicate()})).sum().backward();
  forget_remembered(world);
  const int64_t before = world.memory().live_bytes();
  CommDebugMode comm;
  optimizer.step();
  CHECK(comm.total() == 1);
  // The weight over tp by rows and over dp by columns. The bias has no dim that is free.
  CHECK(comm.bytes() == 32 / 4 * 64 * 4 * 15 / 16);
  CHECK(world.memory().live_bytes() - before == 2 * (32 / 4 * 64 / 16 + 32 / 4) * 4);
}

TEST_CASE("a step holds the parts and the gathered values of one bucket, not those of all parameters") {
  constexpr int64_t kParameters = 16, kBytes = 1024 * 8;
  const World world = World::local(4);
  const DeviceMesh mesh(world, {4}, {"dp"});
  limit_gradient_bucket_bytes(world, 0);
  std::vector<Tensor> parameters;
  Tensor loss = zeros({}, mesh, {Replicate()}, {.dtype = torch::kDouble});
  for (int64_t i = 0; i < kParameters; ++i) {
    parameters.push_back(distribute_tensor(torch::ones({1024}, torch::kDouble), mesh).requires_grad_());
    loss = loss + parameters.back().pow(2).sum();
  }
  loss.backward();
  loss.reset();
  forget_remembered(world);
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer({}, parameters, 0.1);
  const int64_t before = world.memory().live_bytes();
  world.memory().reset_peak();
  optimizer.step();
  CHECK(world.memory().peak_bytes() - before <= 2 * kParameters * kBytes / 4 + 3 * kBytes);
  CHECK(world.memory().live_bytes() == before);
  for (const Tensor& p : parameters) CHECK(torch::allclose(full_tensor(p), torch::full({1024}, 0.8, torch::kDouble)));
}

TEST_CASE("two parameters in one memory are updated one after the other, as on one device") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  const auto leaf = [](const Tensor& t) {
    Tensor p = torch::empty_like(t);
    p.set_data(t);
    return p.requires_grad_();
  };
  const Tensor start = torch::ones({8}, torch::kDouble), shared = start.clone();
  const Tensor whole = distribute_tensor(start, mesh);
  const std::vector<Tensor> plain = {leaf(shared), leaf(shared)}, tied = {leaf(whole), leaf(whole)};
  torch::optim::SGD plain_optimizer(plain, 0.1);
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer({}, tied, 0.1);
  (plain[0] * 2 + plain[1] * 3).sum().backward();
  (tied[0] * 2 + tied[1] * 3).sum().backward();
  plain_optimizer.step();
  optimizer.step();
  CHECK(torch::allclose(full_tensor(tied[0]), plain[0]));
  CHECK(torch::allclose(full_tensor(tied[1]), plain[1]));
}

TEST_CASE("other handles and views of a parameter see the step; gradients stay as they were") {
  Distributed d;
  const Tensor p = d.model->parameters()[1], handle = p.detach(), view = p.detach().view({7, 1});
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer({.mesh_dim = "dp"}, d.model->parameters(), 0.1);
  d.loss(0).backward();
  const Tensor gradient = p.grad(), before = full_tensor(p).detach().clone(), g = full_tensor(gradient);
  optimizer.step();
  CHECK(p.grad().is_same(gradient));
  CHECK(torch::equal(full_tensor(gradient), g));
  CHECK(torch::allclose(full_tensor(p), before - 0.1 * g));
  CHECK(torch::equal(full_tensor(handle), full_tensor(p)));
  CHECK(torch::equal(full_tensor(view).view({7}), full_tensor(p)));
}

// Throws after the first parameter.
class FailingSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
  Tensor step(LossClosure = nullptr) override {
    param_groups()[0].params()[0].mul_(2);
    throw std::runtime_error("no step today");
  }
};

TEST_CASE("parameters and gradients have their values from before a step that throws") {
  Distributed d;
  ZeroRedundancyOptimizer<FailingSgd> optimizer({.mesh_dim = "dp"}, d.model->parameters(), 0.1);
  d.loss(0).backward();
  const torch::NoGradGuard no_grad;
  const Tensor p = d.model->parameters()[0], gradient = p.grad();
  CHECK_THROWS_WITH(optimizer.step(), "no step today");
  torch::nn::Sequential plain = make_optimized_layers();
  check_parameters(d.model, plain);
  CHECK(p.grad().is_same(gradient));
}

TEST_CASE("closures, learning rate schedulers, frozen parameters and GradScaler work with sharded states") {
  torch::nn::Sequential plain = make_optimized_layers();
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
  Distributed d;
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer({.mesh_dim = "dp"}, d.model->parameters(), 0.1);
  plain->parameters()[2].set_requires_grad(false);
  d.model->parameters()[2].set_requires_grad(false);
  torch::optim::StepLR plain_scheduler(plain_optimizer, 1, 0.5), scheduler(optimizer, 1, 0.5);
  GradScaler scaler({.init_scale = 8});
  for (int64_t step = 0; step < 2; ++step) {
    plain_optimizer.zero_grad();
    plain->forward(batch(step)).pow(2).mean().backward();
    plain_optimizer.step();
    plain_scheduler.step();
    optimizer.zero_grad();
    if (step == 0) {
      scaler.scale(d.loss(step)).backward();
      CHECK(scaler.step(optimizer));
      scaler.update();
    } else {
      const Tensor loss = optimizer.step([&] {
        const Tensor value = d.loss(step);
        value.backward();
        return value;
      });
      CHECK(loss.defined());
    }
    scheduler.step();
    check_parameters(d.model, plain);
  }
}

TEST_CASE("a mesh dim that no parameter has is an error that names the meshes") {
  using Catch::Contains;
  using Zero = ZeroRedundancyOptimizer<torch::optim::SGD>;
  Distributed d;
  CHECK_THROWS_WITH(Zero({.mesh_dim = "pp"}, d.model->parameters(), 0.1),
                    Contains("mesh_dim is 'pp'") && Contains("mesh(dp=4, tp=2)"));
  CHECK_THROWS_WITH(Zero({}, d.model->parameters(), 0.1), Contains("name the dim"));
  CHECK_THROWS_WITH(Zero({.mesh_dim = "dp"}, make_optimized_layers()->parameters(), 0.1),
                    Contains("none is distributed"));
}

}  // namespace
}  // namespace dtensor
