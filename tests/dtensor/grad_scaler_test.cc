// GradScaler on distributed parameters: the same steps, skips and scales as on one device.
#include "dtensor/grad_scaler.h"

#include <ATen/autocast_mode.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <limits>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

torch::nn::Linear make_layer() {
  torch::manual_seed(2);
  torch::nn::Linear layer(6, 4);
  layer->to(torch::kDouble);
  return layer;
}

Tensor batch() { return torch::arange(48, torch::kDouble).view({8, 6}).sin(); }

struct Sharded {
  DeviceMesh mesh{World::local(4), {2, 2}, {"dp", "tp"}};
  torch::nn::Linear layer = make_layer();
  torch::optim::SGD optimizer{layer->parameters(), 0.1};
  Sharded() {
    distribute_module(*layer, mesh, [](const std::string&, torch::nn::Module& m, const DeviceMesh& on) {
      shard_parameter(m, "weight", on, {Replicate(), Shard(0)});
    });
  }
  Tensor loss() { return layer(distribute_tensor(batch(), mesh, {Shard(0), Replicate()})).pow(2).mean(); }
  void zero_grad() { optimizer.zero_grad(); }
};

TEST_CASE("a scaled step of sharded parameters equals an unscaled step on one device") {
  torch::nn::Linear plain = make_layer();
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
  plain(batch()).pow(2).mean().backward();
  plain_optimizer.step();

  Sharded sharded;
  GradScaler scaler({.init_scale = 1024});
  scaler.scale(sharded.loss()).backward();
  CHECK(scaler.step(sharded.optimizer));
  scaler.update();
  CHECK(torch::allclose(full_tensor(sharded.layer->weight), plain->weight));
  CHECK(torch::allclose(full_tensor(sharded.layer->bias), plain->bias));
}

TEST_CASE("unscale_ before clip_grad_norm_ gives the norm of the unscaled gradients, for one all_reduce") {
  torch::nn::Linear plain = make_layer();
  plain(batch()).pow(2).mean().backward();
  const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);

  Sharded sharded;
  GradScaler scaler;
  scaler.scale(sharded.loss()).backward();
  {
    CommDebugMode comm;
    scaler.unscale_(sharded.optimizer);
    CHECK(comm.total() == 1);
    CHECK(comm.count(Collective::kAllReduce) == 1);
  }
  CHECK(torch::nn::utils::clip_grad_norm_(sharded.layer->parameters(), 0.1) == Approx(expected));
  CHECK(scaler.step(sharded.optimizer));
}

TEST_CASE("an infinite gradient on one rank of four skips the step and halves the scale") {
  Sharded sharded;
  GradScaler scaler({.init_scale = 8});
  scaler.scale(sharded.loss()).backward();
  const Tensor before = full_tensor(sharded.layer->weight).clone();
  mutable_local_tensors(sharded.layer->weight.grad())[3].fill_(std::numeric_limits<double>::infinity());
  CHECK(!scaler.step(sharded.optimizer));
  scaler.update();
  CHECK(scaler.get_scale() == 4);
  CHECK(torch::equal(full_tensor(sharded.layer->weight), before));
}

TEST_CASE("after growth_interval steps without infinities the scale grows") {
  Sharded sharded;
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  for (const double expected : {8., 16., 16., 32.}) {
    sharded.zero_grad();
    scaler.scale(sharded.loss()).backward();
    scaler.step(sharded.optimizer);
    scaler.update();
    CHECK(scaler.get_scale() == expected);
  }
  GradScaler loaded;
  CHECK_THROWS_WITH(loaded.set_state(std::numeric_limits<double>::infinity(), 0), Catch::Contains("the scale is inf"));
  loaded.set_state(scaler.get_scale(), scaler.growth_tracker());
  CHECK(loaded.get_scale() == 32);
}

TEST_CASE("under autocast to float16, gradients that are zero without a scale are kept with one") {
  Sharded sharded;
  sharded.layer->to(torch::kFloat);
  const auto gradient = [&](GradScaler* scaler) {
    sharded.zero_grad();
    const Tensor x = distribute_tensor(batch().to(torch::kFloat), sharded.mesh, {Shard(0), Replicate()});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kHalf);
    const Tensor y = sharded.layer(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    const Tensor loss = y.to(torch::kFloat).sum() * 1e-8;
    (scaler != nullptr ? scaler->scale(loss) : loss).backward();
    if (scaler != nullptr) scaler->unscale_(sharded.optimizer);
    return full_tensor(sharded.layer->weight.grad());
  };
  CHECK(gradient(nullptr).abs().sum().item<double>() == 0);
  GradScaler scaler;
  const Tensor expected = batch().to(torch::kFloat).sum(0) * 1e-8;
  CHECK(torch::allclose(gradient(&scaler), expected.expand({4, 6}), 1e-2, 1e-10));
}

TEST_CASE("gradients in float16, and Partial ones, are errors that say what to do") {
  Sharded sharded;
  GradScaler scaler;
  {
    DelayGradientReduction delay;
    scaler.scale(sharded.loss()).backward();
  }
  CHECK_THROWS_WITH(scaler.unscale_(sharded.optimizer), Catch::Contains("call reduce_gradients(parameters)"));
  Sharded half;
  half.layer->to(torch::kHalf);
  half.layer(distribute_tensor(batch().to(torch::kHalf), half.mesh, {Shard(0), Replicate()})).sum().backward();
  CHECK_THROWS_WITH(scaler.unscale_(half.optimizer), Catch::Contains("a gradient is in float16"));
}

TEST_CASE("an infinite gradient on one of two meshes skips the step for the parameters of both") {
  const World world = World::local(4);
  const DeviceMesh first(world, {2}, {"dp"}, {0, 1}), second(world, {2}, {"dp"}, {2, 3});
  Tensor a = distribute_tensor(torch::ones({4}), first, {Shard(0)}).requires_grad_();
  Tensor b = distribute_tensor(torch::ones({4}), second, {Shard(0)}).requires_grad_();
  torch::optim::SGD optimizer({a, b}, 0.1);
  GradScaler scaler({.init_scale = 8});
  scaler.scale(a.sum()).backward();
  scaler.scale(b.sum() * std::numeric_limits<float>::infinity()).backward();
  CHECK(!scaler.step(optimizer));
  CHECK(torch::equal(full_tensor(a), torch::ones({4})));
}

TEST_CASE("calls of GradScaler in the wrong order, and options out of range, are errors") {
  Sharded sharded;
  GradScaler scaler;
  CHECK_THROWS_WITH(scaler.update(), Catch::Contains("update() without unscale_() or step() before"));
  CHECK_THROWS_WITH(scaler.step(sharded.optimizer), Catch::Contains("call backward() before"));
  scaler.scale(sharded.loss()).backward();
  scaler.unscale_(sharded.optimizer);
  CHECK_THROWS_WITH(scaler.unscale_(sharded.optimizer), Catch::Contains("already since the last update()"));
  CHECK(scaler.step(sharded.optimizer));
  CHECK_THROWS_WITH(scaler.step(sharded.optimizer), Catch::Contains("already since the last update()"));
  CHECK_THROWS_WITH(GradScaler({.init_scale = 0}), Catch::Contains("init_scale is 0"));
  CHECK_THROWS_WITH(GradScaler({.growth_factor = 1}), Catch::Contains("growth_factor is 1"));
  CHECK_THROWS_WITH(GradScaler({.backoff_factor = 1}), Catch::Contains("backoff_factor is 1"));
  CHECK_THROWS_WITH(GradScaler({.growth_interval = 0}), Catch::Contains("growth_interval is 0"));
}

}  // namespace
}  // namespace dtensor
