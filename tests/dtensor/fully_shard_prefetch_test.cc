// fully_shard() with prefetch: the gather of the next group begins before the operators of a group run, and is waited
// for when an operator uses that group. Also runs with a process per rank (//tests/processes).
#include <torch/nn.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/flight_records.h"
#include "tests/testing/four_ranks.h"

namespace dtensor {
namespace {

using testing::four_ranks;
using testing::is_job;
using torch::Tensor;

struct TwoLayersImpl : torch::nn::Module {
  explicit TwoLayersImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, width + 3))),
        down(register_module("down", torch::nn::Linear(width + 3, width))) {}
  Tensor forward(const Tensor& x) { return x + down(torch::tanh(up(x))); }

  torch::nn::Linear up, down;
};
TORCH_MODULE(TwoLayers);

// Blocks of one width, and a head.
struct ChainImpl : torch::nn::Module {
  ChainImpl(int64_t num_blocks, int64_t width)
      : blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(width, 2))) {
    for (int64_t i = 0; i < num_blocks; ++i) blocks->push_back(TwoLayers(width));
  }
  TwoLayersImpl& block(size_t i) { return *blocks[i]->as<TwoLayers>(); }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < blocks->size(); ++i) x = block(i).forward(x);
    return head(x);
  }

  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Chain);

constexpr int64_t kChainBlocks = 4, kChainWidth = 5;

Chain make_chain() {
  torch::manual_seed(3);
  Chain model(kChainBlocks, kChainWidth);
  model->to(torch::kDouble);
  return model;
}

Tensor chain_batch() { return torch::arange(8 * kChainWidth, torch::kDouble).view({8, kChainWidth}).sin(); }

struct ShardedChain {
  DeviceMesh mesh{four_ranks(), {4}, {"dp"}};
  Chain model = make_chain();
  Tensor x = distribute_tensor(chain_batch(), mesh, {Shard(0)});

  explicit ShardedChain(const FullyShardOptions& options = {.prefetch = true}) {
    for (const auto& block : *model->blocks) fully_shard(*block, mesh, options);
    fully_shard(*model, mesh, options);
  }
  Tensor loss() { return model->forward(x).square().sum(); }
};

// What happens, in its order: "gather blocks.0", and "compute blocks.0.up" when a product with a weight has run, in
// backward "compute". Checks then, in a job, that the next block in the order is still arriving.
class ForwardRecord : public internal::CommListener {
 public:
  explicit ForwardRecord(ChainImpl& model)
      : model_(model), guard_([this](internal::Scope& s) { s.listeners.push_back(this); }) {}
  void on_comm(const CommEvent& event, bool before) override {
    if (!before) return;
    if (event.cause.op == fails_.first && event.cause.module_path == fails_.second)
      TORCH_CHECK(false, "rank 2 does not answer");
    if (event.cause.op == "gather") lines.push_back("gather " + event.cause.module_path);
  }
  void on_work(const internal::WorkEvent& event) override {
    if (event.flops == 0) return;
    lines.push_back(event.backward ? "compute" : "compute " + event.module_path);
    for (size_t i = 0; i < kChainBlocks; ++i) {
      const std::string text = DTensor(model_.block(i).up->weight).explain();
      if (text.find("arriving") != std::string::npos) lines.back() += ", blocks." + std::to_string(i) + " arriving";
    }
  }
  // Collectives of the cause fail.
  void fail(const std::string& op, const std::string& module) { fails_ = {op, module}; }

  std::vector<std::string> lines;

 private:
  ChainImpl& model_;
  std::pair<std::string, std::string> fails_;
  internal::ScopeGuard guard_;
};

std::string block_arriving(const std::string& block) { return is_job() ? ", " + block + " arriving" : ""; }

std::map<std::string, int> gathers(const CommDebugMode& comm) {
  std::map<std::string, int> result;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "gather") ++result[e.cause.module_path];
  }
  return result;
}

void check_gradients(const ShardedChain& sharded) {
  Chain plain = make_chain();
  plain->forward(chain_batch()).square().sum().backward();
  const auto expected = plain->named_parameters();
  for (const auto& p : sharded.model->named_parameters()) {
    INFO(p.key());
    REQUIRE(p.value().grad().defined());
    CHECK(torch::allclose(full_tensor(p.value().grad()), expected[p.key()].grad(), 1e-10, 1e-12));
  }
}

using Gathers = std::map<std::string, int>;
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("fully_shard: with prefetch a group's gather begins before the operators of the one before, in forward") {
  ShardedChain sharded;
  const ForwardRecord record(*sharded.model);
  sharded.loss();
  CHECK(record.lines == Lines{"gather blocks.0", "gather blocks.1", "compute blocks.0.up" + block_arriving("blocks.1"),
                              "compute blocks.0.down" + block_arriving("blocks.1"), "gather blocks.2",
                              "compute blocks.1.up" + block_arriving("blocks.2"),
                              "compute blocks.1.down" + block_arriving("blocks.2"), "gather blocks.3",
                              "compute blocks.2.up" + block_arriving("blocks.3"),
                              "compute blocks.2.down" + block_arriving("blocks.3"), "gather head",
                              "compute blocks.3.up", "compute blocks.3.down", "compute head"});
}

TEST_CASE("fully_shard: with prefetch a group's gather begins before the operators of the one after, in backward") {
  ShardedChain sharded;
  const Tensor loss = sharded.loss();
  const ForwardRecord record(*sharded.model);
  loss.backward();
  Lines expected{"compute", "compute"};  // the head's
  for (size_t i = kChainBlocks; i-- > 1;) {
    const std::string before = "blocks." + std::to_string(i - 1);
    expected.push_back("gather " + before);
    expected.insert(expected.end(), 4, "compute" + block_arriving(before));  // block i's: two gradients of each layer
  }
  expected.insert(expected.end(), 3, "compute");  // the input needs no gradient
  CHECK(record.lines == expected);
}

TEST_CASE("fully_shard: with prefetch a step has the gathers, reductions and gradients that it has without") {
  for (const bool reshard : {true, false}) {
    CAPTURE(reshard);
    ShardedChain sharded({.reshard_after_forward = reshard, .prefetch = true});
    const int twice = reshard ? 2 : 1;
    for (int step = 0; step < 3; ++step) {
      sharded.model->zero_grad();
      CommDebugMode comm;
      sharded.loss().backward();
      CHECK(gathers(comm) ==
            Gathers{{"blocks.0", twice}, {"blocks.1", twice}, {"blocks.2", twice}, {"blocks.3", 1}, {"head", 1}});
      CHECK(comm.counts().at("reduce_scatter") == kChainBlocks + 1);
      check_gradients(sharded);
    }
  }
}

TEST_CASE("fully_shard: with prefetch and bfloat16 parameters a step has as many gathers, of half the bytes") {
  ShardedChain half({.mixed_precision = {.param_dtype = torch::kBFloat16}, .prefetch = true}), whole;
  int64_t bytes[2] = {0, 0};
  for (ShardedChain* sharded : {&half, &whole}) {
    CommDebugMode comm;
    sharded->loss().backward();
    CHECK(comm.counts().at("all_gather") == 2 * kChainBlocks);
    for (const CommEvent& e : comm.events()) bytes[sharded == &half ? 0 : 1] += e.cause.op == "gather" ? e.bytes : 0;
  }
  CHECK(bytes[0] * 4 == bytes[1]);  // of float64
}

TEST_CASE("fully_shard: with prefetch blocks inside checkpoint() have the gradients that they have without it") {
  ShardedChain sharded;
  CommDebugMode comm;
  Tensor x = sharded.x;
  for (const auto& block : *sharded.model->blocks) {
    x = checkpoint([block](const Tensor& in) { return block->as<TwoLayers>()->forward(in); }, x);
  }
  sharded.model->head(x).square().sum().backward();
  CHECK(gathers(comm) == Gathers{{"blocks.0", 2}, {"blocks.1", 2}, {"blocks.2", 2}, {"blocks.3", 1}, {"head", 1}});
  check_gradients(sharded);
}

TEST_CASE("fully_shard: with prefetch a containing group that is used between blocks causes no further gathers") {
  ShardedChain sharded;
  CommDebugMode comm;
  Tensor x = sharded.x;
  for (size_t i = 0; i < kChainBlocks; ++i) {
    x = sharded.model->block(i).forward(x);
    x = x + torch::matmul(sharded.model->head(x), sharded.model->head->weight);
  }
  x.square().sum().backward();
  CHECK(gathers(comm) == Gathers{{"blocks.0", 2}, {"blocks.1", 2}, {"blocks.2", 2}, {"blocks.3", 1}, {"head", 1}});
}

TEST_CASE("fully_shard: with prefetch blocks that are used in the reverse order have the right values") {
  ShardedChain sharded;
  Chain plain = make_chain();
  Tensor x = sharded.x, expected = chain_batch();
  for (size_t i = kChainBlocks; i-- > 0;) {
    x = sharded.model->block(i).forward(x);
    expected = plain->block(i).forward(expected);
  }
  CHECK(torch::allclose(full_tensor(x), expected));
}

TEST_CASE("fully_shard: a write to a parameter whose gather has begun is seen by the operator that uses it") {
  ShardedChain sharded;
  Chain plain = make_chain();
  const torch::NoGradGuard no_grad;
  const Tensor x = sharded.model->block(0).forward(sharded.x), expected = plain->block(0).forward(chain_batch());
  for (Chain* model : {&sharded.model, &plain}) (*model)->block(1).up->weight.mul_(2);
  CHECK(torch::allclose(full_tensor(sharded.model->block(1).forward(x)), plain->block(1).forward(expected)));
}

TEST_CASE(
    "fully_shard: reshard() frees a group whose gather has begun, which the flight recorder does not call failed") {
  ShardedChain sharded;
  const MemoryMeter& memory = sharded.mesh.world().memory();
  const torch::NoGradGuard no_grad;
  int64_t before = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t last = testing::last_record();
    CommDebugMode comm;
    (void)sharded.model->block(0).forward(sharded.x);
    CHECK(gathers(comm) == Gathers{{"blocks.0", 1}, {"blocks.1", 1}});
    const int64_t during = memory.live_bytes();
    reshard(*sharded.model);
    CHECK(memory.live_bytes() < during);
    const auto dropped = testing::records_after(last);
    CHECK(std::count_if(dropped.begin(), dropped.end(), [](const auto& r) { return r.contains("awaited"); }) ==
          (is_job() ? 1 : 0));
    if (i == 0) before = memory.live_bytes();
    CHECK(memory.live_bytes() == before);
  }
}

TEST_CASE(
    "fully_shard: a gather ahead that fails names the group, the operator and its parameter, and can be repeated") {
  using Catch::Contains;
  ShardedChain sharded;
  {
    ForwardRecord record(*sharded.model);
    record.fail("gather", "blocks.2");
    CHECK_THAT(testing::error_text([&] { sharded.loss(); }), Contains("rank 2 does not answer") &&
                                                                 Contains("the parameters of 'blocks.2'") &&
                                                                 Contains("aten::addmm") && Contains("blocks.1.up"));
  }
  sharded.loss().backward();
  check_gradients(sharded);
}

TEST_CASE("fully_shard: in forward with prefetch two gathered groups are in memory") {
  const World ranks = World::local(4);
  const DeviceMesh mesh(ranks, {4}, {"dp"});
  Chain model(6, 125);
  const FullyShardOptions options{.prefetch = true};
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, options);
  fully_shard(*model, mesh, options);
  int64_t own = 0, group = 0;
  for (const auto& p : model->named_parameters()) {
    const Spec& spec = DTensor(p.value()).spec();
    own += spec.max_local_bytes();
    if (p.key().find("blocks.0.") == 0) group += spec.meta().bytes();
  }
  const Tensor x = ones({4, 125}, mesh, {Shard(0)});
  const torch::NoGradGuard no_grad;
  ranks.memory().reset_peak();
  model->forward(x);
  const int64_t peak = ranks.memory().peak_bytes();
  CAPTURE(own, group, peak);
  CHECK(static_cast<double>(peak) < 1.05 * static_cast<double>(own + 2 * group));
  CHECK(static_cast<double>(peak) > 0.95 * static_cast<double>(own + 2 * group));
}

}  // namespace dtensor
