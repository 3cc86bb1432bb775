// fully_shard(): when groups are gathered, dropped and reduced, and how much memory that takes.
#include <torch/nn.h>
#include <torch/optim.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/four_ranks.h"

namespace dtensor {
namespace {

using testing::four_ranks;
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

constexpr int64_t kStackBlocks = 3, kStackWidth = 5;

Stack make_stack() {
  torch::manual_seed(3);
  Stack model(kStackBlocks, kStackWidth);
  model->to(torch::kDouble);
  return model;
}

Tensor batch() { return torch::arange(8 * kStackWidth, torch::kDouble).view({8, kStackWidth}).sin(); }

struct Sharded {
  DeviceMesh mesh{four_ranks(), {4}, {"dp"}};
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
    CHECK(calls(comm) ==
          Calls{{"gather head", 1}, {"gather blocks.0", 1}, {"gather blocks.1", 1}, {"gather blocks.2", 1}});
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
    CHECK(comm.counts().at("all_gather") == kStackBlocks + 1);
    CHECK(comm.counts().at("reduce_scatter") == kStackBlocks + 1);
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
    CHECK(comm.counts().at("all_gather") - 1 == kStackBlocks + 1);  // 1: full_tensor()
    CHECK(memory.live_bytes() > before);
    reshard(*sharded.model);
    CHECK(memory.live_bytes() == before);
  }
}

TEST_CASE("fully_shard: blocks of a model that was distributed before keep their names") {
  const DeviceMesh mesh(four_ranks(), {4}, {"dp"});
  Stack model = make_stack();
  distribute_module(*model, mesh);
  fully_shard(*model->blocks[1], mesh);
  const Tensor x = distribute_tensor(batch(), mesh, {Shard(0)});
  CommDebugMode comm;
  model->forward(x);
  CHECK(calls(comm) == Calls{{"gather blocks.1", 1}});
}

TEST_CASE("fully_shard: blocks inside checkpoint() have the gradients and reductions that they have without it") {
  Sharded sharded;
  CommDebugMode comm;
  Tensor x = sharded.x;
  for (const auto& block : *sharded.model->blocks) {
    x = checkpoint([block](const Tensor& in) { return block->as<Residual>()->forward(in); }, x);
  }
  sharded.model->head(x).square().sum().backward();
  CHECK(comm.counts().at("reduce_scatter") == kStackBlocks + 1);
  check_gradients(sharded);
}

TEST_CASE("fully_shard: two models on one mesh have the gradients of each alone") {
  Sharded first, second;
  const Tensor loss = first.loss(), other_loss = second.loss();
  loss.backward();
  other_loss.backward();
  check_gradients(first);
  check_gradients(second);
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
  CHECK(comm.counts().at("reduce_scatter") == 3 * (kStackBlocks + 1));
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

TEST_CASE("fully_shard: a backward that fails has added the gradients of groups that were complete, and no others") {
  Sharded sharded;
  sharded.loss().backward();
  auto* first = sharded.model->blocks[0]->as<Residual>();
  const Tensor &complete = sharded.model->head->weight, &waiting = first->down->weight;
  const Tensor of_complete = complete.grad(), of_waiting = waiting.grad();
  const Tensor before = full_tensor(of_complete).clone(), waiting_before = full_tensor(of_waiting).clone();
  const unsigned hook =
      first->up->bias.register_hook([](const Tensor&) { throw std::runtime_error("a failing hook"); });
  CHECK_THROWS(sharded.loss().backward());
  CHECK(complete.grad().is_same(of_complete));
  CHECK(torch::allclose(full_tensor(complete.grad()), 2 * before));
  CHECK(waiting.grad().is_same(of_waiting));
  CHECK(torch::equal(full_tensor(waiting.grad()), waiting_before));
  first->up->bias.remove_hook(hook);
  sharded.model->zero_grad();
  sharded.loss().backward();
  check_gradients(sharded);
}

TEST_CASE("fully_shard: what an operator on a gathered parameter communicates is reported by the parameter's module") {
  const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "tp"});
  Stack model = make_stack();
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, {.mesh_dim = "dp"});
  fully_shard(*model, mesh, {.mesh_dim = "dp"});
  const Tensor x = distribute_tensor(batch(), mesh, {Shard(0), Partial()});
  CommDebugMode comm;
  model->forward(x);
  int reductions = 0;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "gather") continue;
    CHECK(!e.cause.module_path.empty());
    ++reductions;
  }
  CHECK(reductions > 0);
}

TEST_CASE("fully_shard: a write to a parameter, or through a view of it, drops its gathered value") {
  Sharded sharded;
  const torch::NoGradGuard no_grad;
  const Tensor before = full_tensor(sharded.model->forward(sharded.x));
  for (const Tensor& p : sharded.model->parameters()) p.mul_(2);
  Stack plain = make_stack();
  for (const Tensor& p : plain->parameters()) p.mul_(2);
  CHECK(torch::allclose(full_tensor(sharded.model->forward(sharded.x)), plain->forward(batch())));
  for (Stack* model : {&plain, &sharded.model}) (*model)->head->weight.narrow(1, 0, 2).mul_(3);
  CHECK(torch::allclose(full_tensor(sharded.model->forward(sharded.x)), plain->forward(batch())));
}

TEST_CASE("fully_shard: Module::to() keeps the groups") {
  Sharded sharded;
  sharded.model->to(torch::kFloat);
  CommDebugMode comm;
  sharded.model->forward(sharded.x.to(torch::kFloat)).square().sum().backward();
  CHECK(comm.counts().at("all_gather") == 2 * kStackBlocks);
  CHECK(comm.counts().at("reduce_scatter") == kStackBlocks + 1);
}

TEST_CASE("fully_shard: a model made without data keeps its groups in to_empty()") {
  const DeviceMesh mesh(four_ranks(), {4}, {"dp"});
  Stack model{nullptr};
  {
    const MeshScope shapes(mesh.meta());
    model = Stack(kStackBlocks, kStackWidth);
  }
  for (const auto& block : *model->blocks) fully_shard(*block, mesh);
  fully_shard(*model, mesh);
  to_empty(*model);
  {
    const torch::NoGradGuard no_grad;
    for (const Tensor& p : model->parameters()) p.fill_(0.1);
  }
  CommDebugMode comm;
  model->forward(ones({8, kStackWidth}, mesh, {Shard(0)})).sum().backward();
  CHECK(comm.counts().at("all_gather") == 2 * kStackBlocks);
  CHECK(comm.counts().at("reduce_scatter") == kStackBlocks + 1);
}

namespace {

// The most bytes of a rank in a step; and the same by a formula: the parts of parameters and gradients, a gathered
// group and its gradients, the group of the head, which stays, and what forward saves of the batch. Between processes,
// which abstract worlds stand for, the reduction of a group holds the messages sent, those received, and the addends
// in the order of the ranks, each as large as what the group's other ranks have of it.
struct Peak {
  int64_t measured = 0, formula = 0;
};

Peak peak_of_step(const World& ranks, int64_t width) {
  const DeviceMesh mesh(ranks, {ranks.size()}, {"dp"});
  Stack model(4, width);
  for (const auto& block : *model->blocks) fully_shard(*block, mesh);
  fully_shard(*model, mesh);
  const int64_t rows = 2;
  const Tensor x = ones({rows * ranks.size(), width}, mesh, {Shard(0)});
  int64_t own = 0, group = 0, group_part = 0, head = 0;
  for (const auto& p : model->named_parameters()) {
    const Spec& spec = DTensor(p.value()).spec();
    own += 2 * spec.max_local_bytes();
    if (p.key().find("blocks.0.") == 0) group += spec.meta().bytes();
    if (p.key().find("blocks.0.") == 0) group_part += spec.max_local_bytes();
    if (p.key().find("head.") == 0) head += spec.meta().bytes();
  }
  ranks.memory().reset_peak();
  model->forward(x).square().sum().backward();
  const int64_t saved = 4 * rows * (width + 2 * (width + 3)) * static_cast<int64_t>(sizeof(float));
  const int64_t buffers = ranks.has_data() ? 0 : 3 * (group - group_part);
  return {ranks.memory().peak_bytes(), own + 2 * group + head + saved + buffers};
}

}  // namespace

TEST_CASE("fully_shard: a step takes the memory of the parts, of two groups, and of the buffers of a reduction") {
  for (const World& ranks : {World::local(4), World::abstract(64)}) {
    const auto [measured, formula] = peak_of_step(ranks, 125);
    CAPTURE(ranks.name(), measured, formula);
    CHECK(static_cast<double>(measured) < 1.05 * static_cast<double>(formula));
    CHECK(static_cast<double>(measured) > 0.95 * static_cast<double>(formula));
  }
}

TEST_CASE("fully_shard: a step on 64 ranks without data has the collectives of a step with data") {
  const DeviceMesh mesh(World::abstract(64), {64}, {"dp"});
  Stack model = make_stack();
  for (const auto& block : *model->blocks) fully_shard(*block, mesh);
  fully_shard(*model, mesh);
  for (int step = 0; step < 2; ++step) {
    CommDebugMode comm;
    model->forward(ones({64, kStackWidth}, mesh, {Shard(0)}, {.dtype = torch::kDouble})).sum().backward();
    CHECK(comm.counts().at("all_gather") == 2 * kStackBlocks);
    CHECK(comm.counts().at("reduce_scatter") == kStackBlocks + 1);
    model->zero_grad();
  }
}

TEST_CASE("fully_shard: refusals name the parameter or the mesh dim, and leave the module as it was") {
  using Catch::Contains;
  using testing::error_text;
  const DeviceMesh mesh(four_ranks(), {2, 2}, {"dp", "tp"});
  Stack model = make_stack();
  CHECK_THAT(error_text([&] { fully_shard(*model, DeviceMesh()); }), Contains("[fully_shard] no mesh"));
  CHECK_THAT(error_text([&] { fully_shard(*model, mesh); }), Contains("{.mesh_dim = \"dp\"}"));
  CHECK_THAT(error_text([&] { fully_shard(*model, mesh, {.mesh_dim = "pp"}); }),
             Contains("mesh_dim 'pp' is no dim of mesh(dp=2, tp=2)"));
  CHECK(!is_dtensor(model->head->weight));
  shard_parameter(*model, "head.weight", mesh, {Shard(0), Replicate()});
  CHECK_THAT(error_text([&] { fully_shard(*model, mesh, {.mesh_dim = "dp"}); }),
             Contains("'head.weight' is") && Contains("not replicated over the mesh dim 'dp'"));
  CHECK(!is_dtensor(model->head->bias));
  fully_shard(*model, mesh, {.mesh_dim = "tp"});
  CHECK(DTensor(model->head->weight).placements() == Placements{Shard(0), Shard(0)});
  CHECK_THAT(error_text([&] { fully_shard(*model->blocks[0], mesh, {.mesh_dim = "tp"}); }),
             Contains("'up.weight'") && Contains("for submodules first"));
}

}  // namespace dtensor
