// A Llama in plain torch::nn: on a mesh it computes what it computes on one device, in training and in
// generation, and communicates what Megatron's hand-written layers do.
#include "examples/models/llama.h"

#include <torch/optim.h>

#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
#include "tests/examples/against_one_device.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using examples::Llama;
using examples::LlamaConfig;

Llama make_llama(const LlamaConfig& config) {
  torch::manual_seed(3);
  Llama model(config);
  model->to(torch::kDouble);
  return model;
}

struct Sequences {
  torch::Tensor ids, targets;
};

Sequences make_batch(const LlamaConfig& config, int64_t batch, int64_t length) {
  torch::manual_seed(5);
  return {torch::randint(config.vocab, {batch, length}), torch::randint(config.vocab, {batch, length})};
}

Sequences on_mesh(const Sequences& batch, const DeviceMesh& mesh) {
  const Placements placements = examples::over(mesh, "dp", Shard(0));
  return {distribute_tensor(batch.ids, mesh, placements), distribute_tensor(batch.targets, mesh, placements)};
}

torch::Tensor llama_loss(Llama& model, const Sequences& batch) {
  const auto scores = model->forward(batch.ids);
  return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), batch.targets.view({-1}));
}

// Losses and gradients of some steps, on a mesh and on one device.
void check_llama(const LlamaConfig& config, const DeviceMesh& mesh, int64_t batch_size, int64_t length) {
  CAPTURE(mesh.to_string(), config.vocab, config.heads);
  Llama plain = make_llama(config), distributed = make_llama(config);
  distribute_module(*distributed, mesh, examples::shard_llama);
  torch::optim::AdamW plain_optimizer(plain->parameters(), 1e-2), optimizer(distributed->parameters(), 1e-2);
  const Sequences batch = make_batch(config, batch_size, length), spread = on_mesh(batch, mesh);
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    const auto expected = llama_loss(plain, batch);
    expected.backward();
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const MeshScope scope(mesh);
      loss = llama_loss(distributed, spread);
    }
    loss.backward();
    CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-12));
    const auto expected_parameters = plain->named_parameters();
    for (const auto& p : distributed->named_parameters()) {
      INFO("step " << step << ", gradient of " << p.key());
      CHECK(torch::allclose(whole(p.value().grad()), expected_parameters[p.key()].grad(), 1e-9, 1e-11));
    }
    plain_optimizer.step();
    optimizer.step();
  }
}

TEST_CASE("llama: training on a mesh is training on one device", "[examples][llama]") {
  LlamaConfig config;
  config.vocab = 24;
  config.width = 16;
  config.heads = 4;
  config.kv_heads = 2;
  config.hidden = 20;
  check_llama(config, DeviceMesh(World::local(2), {2}, {"tp"}), 2, 5);
  check_llama(config, DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"}), 4, 6);
  check_llama(config, DeviceMesh(World::local(4), {4}, {"tp"}), 2, 5);  // fewer heads of keys than ranks
  config.vocab = 23;                                                    // what divides by nothing
  config.heads = 6;
  config.kv_heads = 3;
  config.width = 24;
  config.hidden = 17;
  check_llama(config, DeviceMesh(World::local(4), {4}, {"tp"}), 3, 5);
  check_llama(config, DeviceMesh(World::local(6), {3, 2}, {"dp", "tp"}), 4, 5);
}

LlamaConfig even_config() {
  LlamaConfig config;
  config.vocab = 512;
  return config;
}

TEST_CASE("llama: one reduction per half of a block, and no weight moves", "[examples][llama]") {
  const LlamaConfig config = even_config();
  for (const DeviceMesh& mesh :
       {DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"}), DeviceMesh(World::abstract(1024), {256, 4}, {"dp", "tp"})}) {
    CAPTURE(mesh.to_string());
    Llama model = make_llama(config);
    distribute_module(*model, mesh, examples::shard_llama);
    const int64_t dp = mesh.size("dp");
    const Sequences batch = on_mesh(make_batch(config, 4 * dp, 8), mesh);
    const MeshScope scope(mesh);
    CommDebugMode comm;
    const auto loss = llama_loss(model, batch);
    // The embedding and two per block; target scores and mean.
    CHECK(comm.count(Collective::kAllReduce) == 1 + 2 * config.layers + 1);
    // Maximum and sum of the scores.
    CHECK(comm.count(Collective::kAllGather) == 1);
    CHECK(comm.total() == comm.count(Collective::kAllReduce) + 1);
    comm.reset();
    loss.backward();
    // The head's, and two per block; the gradients of all parameters.
    CHECK(comm.count(Collective::kAllReduce) == 2 * config.layers + 1 + 1);
    CHECK(comm.total() == comm.count(Collective::kAllReduce));
  }
}

// The ids that follow the prompts of all slots, one step after the other.
struct Generation {
  Llama model;
  SequenceSlots slots;
  std::vector<KVCache> caches;

  torch::Tensor next(const torch::Tensor& ids) {
    const GenerationStep step = slots.step(std::vector<int64_t>(static_cast<size_t>(ids.size(0)), ids.size(1)));
    const auto best = model->score_next(ids, step, caches).argmax(-1, /*keepdim=*/true);
    slots.advance(step);
    return best;
  }
};

Generation make_generation(const Llama& model, int64_t slots) {
  Generation generation{model, SequenceSlots(slots, 16), std::vector<KVCache>(2)};
  while (generation.slots.join()) continue;
  return generation;
}

TEST_CASE("llama: generation keeps its cache where the heads are", "[examples][llama]") {
  const LlamaConfig config = even_config();
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  Llama plain = make_llama(config), distributed = make_llama(config);
  distribute_module(*distributed, mesh, examples::shard_llama);
  Generation expected = make_generation(plain, 3), generation = make_generation(distributed, 3);
  const at::NoGradGuard no_grad;
  torch::Tensor expected_ids = make_batch(config, 3, 7).ids, ids = distribute_tensor(expected_ids, mesh);
  torch::Tensor all = expected_ids;
  uint64_t misses = 0;
  for (int token = 0; token < 6; ++token) {
    expected_ids = expected.next(expected_ids);
    CHECK(torch::equal(expected_ids, plain->forward(all).select(1, -1).argmax(-1, /*keepdim=*/true)));
    all = torch::cat({all, expected_ids}, 1);
    if (token == 2) misses = strategy_cache(mesh.world()).stats().misses;
    CommDebugMode comm;
    {
      const MeshScope scope(mesh);
      ids = generation.next(ids);
    }
    // The embedding, two per block, and the ranks' best ids.
    CHECK(comm.count(Collective::kAllReduce) == 1 + 2 * config.layers);
    CHECK(comm.count(Collective::kAllGather) == 1);
    CHECK(comm.total() == 2 + 2 * config.layers);
    CHECK(torch::equal(full_tensor(ids), expected_ids));
    for (size_t layer = 0; layer < 2; ++layer) {
      const KVCache& cache = generation.caches[layer];
      CHECK(DTensor(cache.keys()).placements() == Placements{Shard(1)});
      CHECK(DTensor(cache.values()).placements() == Placements{Shard(1)});
      CHECK(torch::allclose(full_tensor(cache.values()), expected.caches[layer].values(), 1e-9, 1e-12));
    }
  }
  CHECK(strategy_cache(mesh.world()).stats().misses == misses);  // no decision since the second token
}

}  // namespace
}  // namespace dtensor
