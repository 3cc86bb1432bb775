// Ten embedding bags over four ranks, two sharded by rows and eight by columns with a Sharder in a ShardingPlan, and
// trained by ShardedOptimizer. Every rank has a batch of its own. The same model is trained on one device for
// comparison. The ranks are in this process, or in one each if a launcher started several:
//
//   ./bazelw run //examples:sharded_embeddings -- --steps 20
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/examples/sharded_embeddings
//
// With DTensors the same is shard_parameter(bag, "weight", mesh, {Shard(0)}), an Embedding and any optimizer: this
// layer is for programs that come from torch.distributed._shard (docs/sharded_tensor.md).

#include <torch/nn.h>
#include <torch/optim.h>

#include <cmath>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/dtensor.h"
#include "processes/launch/launch_env.h"
#include "sharded/chunk_sharding_spec.h"
#include "sharded/embedding.h"
#include "sharded/sharded_optimizer.h"
#include "sharded/sharding_plan.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, ranks, 4, "ranks in this process; where a launcher started several processes, as many as those");
ABSL_FLAG(int64_t, steps, 20, "optimizer steps");
ABSL_FLAG(int64_t, batch, 8, "samples of every rank and step");
ABSL_FLAG(uint64_t, seed, 1, "of the tables and the batches");

namespace {

using namespace dtensor;
using torch::nn::EmbeddingBag;
using torch::nn::EmbeddingBagOptions;

constexpr int64_t kBags = 10, kRows = 50, kColumns = 8, kIds = 4, kRowWise = 2;

// The model's interface to its bags, sharded or not: one list of ids per rank of this process, [batch, ids], and one
// [batch, columns] back, the sum over all bags.
struct BagCollection : torch::nn::Module {
  virtual std::vector<at::Tensor> forward(const std::vector<at::Tensor>& ids) = 0;
};

struct EmbeddingBags : BagCollection {
  EmbeddingBags() {
    for (int64_t i = 0; i < kBags; ++i) {
      bags.push_back(register_module(absl::StrCat("bag_", i),
                                     EmbeddingBag(EmbeddingBagOptions(kRows, kColumns).mode(torch::kSum))));
    }
  }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& ids) override {
    std::vector<at::Tensor> results;
    for (const at::Tensor& own : ids) {
      std::vector<at::Tensor> pooled;
      for (EmbeddingBag& bag : bags) pooled.push_back(bag(own));
      results.push_back(torch::stack(pooled).sum(0));
    }
    return results;
  }
  std::vector<EmbeddingBag> bags;
};

// The same bags with their tables sharded: all of them are looked up at once.
struct ShardedBags : BagCollection {
  ShardedBags(const EmbeddingBags& plain, const World& world) {
    std::vector<sharded::RemoteDevice> everywhere;
    for (int64_t rank = 0; rank < world.size(); ++rank) everywhere.emplace_back(rank, world.device(rank));
    for (int64_t i = 0; i < kBags; ++i) bags.push_back(register_module(absl::StrCat("bag_", i), plain.bags[i]));
    sharded::ShardingPlan plan;
    for (int64_t i = 0; i < kBags; ++i) {
      plan.plan.emplace_back(absl::StrCat("bag_", i, ".weight"),
                             sharded::ChunkShardingSpec(i < kRowWise ? 0 : 1, everywhere));
    }
    sharded::shard_module(*this, plan, world);
  }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& ids) override {
    std::vector<sharded::BagTable> tables;
    for (EmbeddingBag& bag : bags) {
      sharded::EmbeddingBagOptions options;
      options.mode = "sum";
      options.same_sizes = true;
      tables.push_back({sharded::ShardedTensor(bag->weight), options, {}});
      for (const at::Tensor& own : ids) tables.back().inputs.push_back({own});
    }
    const auto pooled = sharded::embedding_bags(tables);
    std::vector<at::Tensor> results;
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<at::Tensor> of_rank;
      for (const auto& of_table : pooled) of_rank.push_back(of_table[i]);
      results.push_back(torch::stack(of_rank).sum(0));
    }
    return results;
  }
  std::vector<EmbeddingBag> bags;
};

struct BagSharder : sharded::Sharder {
  explicit BagSharder(World world) : world(std::move(world)) {}
  std::shared_ptr<torch::nn::Module> shard(const std::shared_ptr<torch::nn::Module>& module) override {
    const auto bags = std::dynamic_pointer_cast<EmbeddingBags>(module);
    TORCH_CHECK(bags != nullptr, "BagSharder shards EmbeddingBags alone, and was given a ", module->name());
    return std::make_shared<ShardedBags>(*bags, world);
  }
  World world;
};

struct Model : torch::nn::Module {
  Model() { register_module("bags", std::make_shared<EmbeddingBags>()); }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& ids) {
    return sharded::submodule<BagCollection>(*this, "bags")->forward(ids);
  }
};

std::shared_ptr<Model> make_model() {
  torch::manual_seed(absl::GetFlag(FLAGS_seed));
  auto model = std::make_shared<Model>();
  model->to(torch::kDouble);
  return model;
}

// The whole batch of a step; rank r has the rows from r * batch on.
struct Batch {
  at::Tensor ids, targets;
  Batch of_rank(int64_t rank, int64_t size) const {
    return {ids.narrow(0, rank * size, size), targets.narrow(0, rank * size, size)};
  }
};
Batch make_batch(int64_t samples, int64_t step) {
  torch::manual_seed(absl::GetFlag(FLAGS_seed) * 1000 + static_cast<uint64_t>(step));
  return {torch::randint(kRows, {samples, kIds}, torch::kLong), torch::rand({samples, kColumns}, torch::kDouble)};
}

// The part of the whole batch's mean that some samples make.
at::Tensor loss_of(const at::Tensor& output, const at::Tensor& targets, int64_t samples) {
  return (output - targets).pow(2).sum() / static_cast<double>(samples * kColumns);
}

int64_t positive(const char* name, int64_t value) {
  if (value < 1) throw tools::UsageError(absl::StrCat("--", name, " ", value, ": must be at least 1"));
  return value;
}

int train() {
  const int64_t steps = positive("steps", absl::GetFlag(FLAGS_steps)),
                batch = positive("batch", absl::GetFlag(FLAGS_batch));
  const World world = find_launcher() == Launcher::kNone ? World::local(positive("ranks", absl::GetFlag(FLAGS_ranks)))
                                                         : World::from_env();
  const bool reports = world.owned_ranks()[0] == 0;
  const DeviceMesh mesh(world, {world.size()}, {"ranks"});

  const auto plain = make_model(), model = make_model();
  sharded::shard_module(*model, {{{"bags", std::make_shared<BagSharder>(world)}}}, world);
  torch::optim::Adagrad plain_optimizer(plain->parameters(), torch::optim::AdagradOptions(0.1));
  sharded::ShardedOptimizer<torch::optim::Adagrad> optimizer(sharded::named_params_with_sharded_tensor(*model),
                                                             torch::optim::AdagradOptions(0.1));
  if (reports) {
    for (const auto& p : optimizer.named_params()) {
      const sharded::ShardedTensor table(p.value());
      std::cout << p.key() << ": " << table.local_shards(0)[0].tensor.sizes() << " of " << table.sizes()
                << " on rank 0\n";
    }
  }
  double largest = 0, first = 0, last = 0;
  CommDebugMode comm;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t samples = batch * world.size();
    const Batch whole = make_batch(samples, step);
    plain_optimizer.zero_grad();
    const at::Tensor expected = loss_of(plain->forward({whole.ids})[0], whole.targets, samples);
    expected.backward();
    plain_optimizer.step();

    comm.reset();
    std::vector<at::Tensor> ids, losses;
    for (int64_t rank : world.owned_ranks()) ids.push_back(whole.of_rank(rank, batch).ids);
    optimizer.zero_grad();
    const auto outputs = model->forward(ids);
    for (size_t i = 0; i < outputs.size(); ++i) {
      losses.push_back(loss_of(outputs[i], whole.of_rank(world.owned_ranks()[i], batch).targets, samples));
    }
    torch::stack(losses).sum().backward();
    optimizer.step();
    if (step == 0 && reports) std::cout << "\nCommunication of one step:\n" << comm << "\n";

    // Every rank has its addend of the loss.
    for (at::Tensor& l : losses) l = l.detach();
    last = full_tensor(from_local(losses, mesh, {Partial()})).item<double>();
    if (step == 0) first = last;
    largest = std::max(largest, std::abs(last - expected.item<double>()));
  }
  if (reports) {
    std::cout << absl::StrFormat("%d steps on %s: loss %.6f, then %.6f; largest difference %.3g\n", steps, world.name(),
                                 first, last, largest);
  }
  return largest < 1e-9 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("sharded_embeddings",
                            "Trains ten sharded embedding bags beside the same ones on one device.", argc, argv, train);
}
