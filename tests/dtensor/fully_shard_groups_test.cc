// fully_shard(): when groups are gathered, dropped and reduced, and how much memory that takes.
#include <torch/nn.h>
#include <torch/optim.h>

#include <map>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, width + 3))),
        down(register_module("down", torch::nn::Linear(width + 3, width))) {}
  Tensor forward(const Tensor& x) { return x + down(torch::tanh(up(x))); }

  torch::nn::Linear up, down;
};
TORCH_MODULE(Residual);

// Blocks of one width, and a head.
struct StackImpl : torch::nn::Module {
  StackImpl(int64_t num_blocks, int64_t width)
      : blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(width, 2))) {
    for (int64_t i = 0; i < num_blocks; ++i) blocks->push_back(Residual(width));
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) x = block->as<Residual>()->forward(x);
    return head(x);
  }

  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Stack);

constexpr int64_t kBlocks = 3, kWidth = 5;

Stack make_stack() {
  torch::manual_seed(3);
  Stack model(kBlocks, kWidth);
  model->to(torch::kDouble);
  return model;
}

Tensor batch() { return torch::arange(8 * kWidth, torch::kDouble).view({8, kWidth}).sin(); }

struct Sharded {
  DeviceMesh mesh{World::local(4), {4}, {"dp"}};
  Stack model = make_stack();
  Tensor x = distribute_tensor(batch(), mesh, {Shard(0)});

  explicit Sharded(const FullyShardOptions& options = {}) {
    for (const auto& block : *model->blocks) fully_shard(*block, mesh, options);
    fully_shard(*model, mesh, options);
  }
  Tensor loss() { return model->forward(x).square().sum(); }
};

// The number of collectives by cause and module: "gather blocks.0", "gradient blocks.0".
std::map<std::string, int> calls(const CommDebugMode& comm) {
  std::map<std::string, int> result;
  for (const CommEvent& e : comm.events()) {
    ++result[e.cause.op + (e.cause.module_path.empty() ? "" : " " + e.cause.module_path)];
  }
  return result;
}

void check_gradients(const Sharded& sharded, double times = 1) {
  Stack plain = make_stack();
  plain->forward(batch()).square().sum().backward();
  const auto expected = plain->named_parameters();
  for (const auto& p : sharded.model->named_parameters()) {
    INFO(p.key());
    REQUIRE(p.value().grad().defined());
    CHECK(DTensor(p.value().grad()).placements() == DTensor(p.value()).placements());
    CHECK(torch::allclose(full_tensor(p.value().grad()), expected[p.key()].grad() * times, 1e-10, 1e-12));
  }
}

using Calls = std::map<std::string, int>;

}  // namespace

TEST_CASE("fully_shard: a step gathers each group at most twice, the last block once, and reduces each once") {
  Sharded sharded;
  for (int step = 0; step < 2; ++step) {
    sharded.model->zero_grad();
    CommDebugMode comm;
    const Tensor loss = sharded.loss();
    CHECK(calls(comm) == Calls{{"gather", 1}, {"gather blocks.0", 1}, {"gather blocks.1", 1}, {"gather blocks.2", 1}});
    comm.reset();
    loss.backward();
    CHECK(calls(comm) == Calls{{"gather blocks.0", 1},
                               {"gather blocks.1", 1},
                               {"gradient head", 1},
                               {"gradient blocks.0", 1},
                               {"gradient blocks.1", 1},
                               {"gradient blocks.2", 1}});
    for (const CommEvent& e : comm.events()) {
      CHECK(e.collective == (e.cause.op == "gather" ? Collective::kAllGather : Collective::kReduceScatter));
    }
    check_gradients(sharded);
  }
}

TEST_CASE("fully_shard: without reshard_after_forward each group is gathered once a step") {
  Sharded sharded({.reshard_after_forward = false});
  torch::optim::SGD optimizer(sharded.model->parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    CommDebugMode comm;
    sharded.loss().backward();
    CHECK(comm.counts().at("all_gather") == kBlocks + 1);
    CHECK(comm.counts().at("reduce_scatter") == kBlocks + 1);
    if (step == 0) check_gradients(sharded);
    optimizer.step();
  }
}

TEST_CASE("fully_shard: evaluation under no_grad gathers each group once, and reshard() frees what is left") {
  Sharded sharded;
  const MemoryMeter& memory = sharded.mesh.world().memory();
  const int64_t before = memory.live_bytes();
  for (const bool inference : {false, true}) {
    CommDebugMode comm;
    {
      const c10::InferenceMode inference_mode(inference);
      const torch::NoGradGuard no_grad;
      const Tensor result = sharded.model->forward(sharded.x);
      CHECK(torch::allclose(full_tensor(result), make_stack()->forward(batch())));
    }
    CHECK(comm.counts().at("all_gather") - 1 == kBlocks + 1);  // 1: full_tensor()
    CHECK(memory.live_bytes() > before);
    reshard(*sharded.model);
    CHECK(memory.live_bytes() == before);
  }
}

TEST_CASE("fully_shard: what reads or updates parameters alone gathers nothing") {
  Sharded sharded;
  sharded.loss().backward();
  torch::optim::AdamW optimizer(sharded.model->parameters(), 0.1);
  const Tensor& weight = sharded.model->head->weight;
  const Tensor average = torch::zeros_like(weight);
  const torch::NoGradGuard no_grad;
  CommDebugMode comm;
  optimizer.step();
  average.mul_(0.9).add_(weight, 0.1);
  (void)DTensor(weight).explain();
  (void)c10::str(DTensor(weight));
  CHECK(comm.total() == 0);
  (void)weight.norm().item<double>();
  (void)at::_foreach_norm(sharded.model->parameters());
  torch::nn::utils::clip_grad_norm_(sharded.model->parameters(), 1.0);
  CHECK(comm.counts().count("all_gather") == 0);
}

TEST_CASE("fully_shard: gradients of several backward passes are added up") {
  Sharded sharded;
  CommDebugMode comm;
  for (int i = 0; i < 3; ++i) sharded.loss().backward();
  check_gradients(sharded, 3);
  CHECK(comm.counts().at("reduce_scatter") == 3 * (kBlocks + 1));
}

TEST_CASE("fully_shard: delayed gradients are reduced by reduce_gradients() in one reduce-scatter") {
  Sharded sharded;
  CommDebugMode comm;
  {
    const DelayGradientReduction delay;
    for (int i = 0; i < 2; ++i) sharded.loss().backward();
  }
  CHECK(comm.counts().count("reduce_scatter") == 0);
  comm.reset();
  reduce_gradients(sharded.model->parameters());
  CHECK(comm.total() == 1);
  check_gradients(sharded, 2);
}

TEST_CASE("fully_shard: gradients of a group with unused parameters are reduced at the end of backward") {
  Sharded sharded;
  auto* block = sharded.model->blocks[0]->as<Residual>();
  CommDebugMode comm;
  block->up->forward(sharded.x).sum().backward();
  CHECK(comm.counts().at("reduce_scatter") == 1);
  CHECK(!block->down->weight.grad().defined());
  CHECK(DTensor(block->up->weight.grad()).placements() == Placements{Shard(0)});
}

}  // namespace dtensor
