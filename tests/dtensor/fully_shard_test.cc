// fully_shard(): training as on one device, with one gather per group and use and one reduction per group.
#include "dtensor/fully_shard.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
#include "examples/models/llama.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

examples::LlamaConfig small(int64_t layers) {
  examples::LlamaConfig c;
  c.vocab = 23;
  c.width = 16;
  c.heads = 4;
  c.kv_heads = 2;
  c.hidden = 19;
  c.layers = layers;
  return c;
}

examples::Llama make_llama(int64_t layers) {
  torch::manual_seed(3);
  examples::Llama model(small(layers));
  model->to(torch::kDouble);
  return model;
}

// Each block in a group of its own, and the rest of the model.
void shard_blocks(examples::Llama& model, const DeviceMesh& mesh, const FullyShardOptions& options) {
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, options);
  fully_shard(*model, mesh, options);
}

Tensor whole(const Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

// The placements of a batch: sharded over all mesh dims but "tp".
Placements batch_over(const DeviceMesh& mesh) {
  Placements placements;
  for (const auto& name : mesh.names()) placements.push_back(name == "tp" ? Replicate() : Shard(0));
  return placements;
}

Tensor ids() { return (torch::arange(40) * 7 % 23).view({8, 5}); }
Tensor targets() { return (torch::arange(40) * 5 % 23).view({8, 5}); }

Tensor loss_of(examples::Llama& model, const Tensor& in, const Tensor& out) {
  const auto scores = model(in);
  return torch::nn::functional::cross_entropy(scores.view({-1, scores.size(-1)}), out.view({-1}));
}

Tensor distributed_loss(examples::Llama& model, const DeviceMesh& mesh) {
  const MeshScope scope(mesh);
  return loss_of(model, distribute_tensor(ids(), mesh, batch_over(mesh)),
                 distribute_tensor(targets(), mesh, batch_over(mesh)));
}

void check_equal(const torch::nn::Module& model, const torch::nn::Module& expected) {
  const auto values = expected.named_parameters();
  for (const auto& p : model.named_parameters()) {
    INFO(p.key());
    CHECK(torch::allclose(whole(p.value()), values[p.key()], 1e-9, 1e-11));
    CHECK(DTensor(p.value().grad()).placements() == DTensor(p.value()).placements());
  }
}

// Losses and parameters of three steps of AdamW beside those on one device.
void check_llama(examples::Llama model, const DeviceMesh& mesh) {
  CAPTURE(mesh.to_string());
  examples::Llama plain = make_llama(2);
  torch::optim::AdamW plain_optimizer(plain->parameters(), 1e-2), optimizer(model->parameters(), 1e-2);
  for (int step = 0; step < 3; ++step) {
    INFO("step " << step);
    plain_optimizer.zero_grad();
    const Tensor expected = loss_of(plain, ids(), targets());
    expected.backward();
    plain_optimizer.step();
    optimizer.zero_grad();
    const Tensor loss = distributed_loss(model, mesh);
    loss.backward();
    optimizer.step();
    CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-11));
    check_equal(*model, *plain);
  }
}

// How often each module's parameters were gathered, and its gradients reduced.
std::map<std::string, int> gathers(const CommDebugMode& comm) {
  std::map<std::string, int> by_module;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "gather") ++by_module[e.cause.module_path];
  }
  return by_module;
}

}  // namespace

TEST_CASE("fully_shard: a Llama trains as on one device") {
  for (const DeviceMesh& mesh : {DeviceMesh(World::local(4), {4}, {"dp"}), DeviceMesh(World::local(3), {3}, {"dp"})}) {
    for (const bool reshard : {true, false}) {
      examples::Llama model = make_llama(2);
      shard_blocks(model, mesh, {.reshard_after_forward = reshard});
      check_llama(model, mesh);
    }
  }
}

TEST_CASE("fully_shard: over one mesh dim, with a second dim of replicas, training is as on one device") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"replicas", "shards"});
  examples::Llama model = make_llama(2);
  shard_blocks(model, mesh, {.mesh_dim = "shards"});
  CHECK(to_string(DTensor(model->norm->weight).placements()) == "RS(0)");
  check_llama(model, mesh);
}

TEST_CASE("fully_shard: a tensor-parallel Llama trains as on one device") {
  for (const DeviceMesh& mesh :
       {DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"}), DeviceMesh(World::local(6), {2, 3}, {"tp", "dp"})}) {
    examples::Llama model = make_llama(2);
    distribute_module(*model, mesh, examples::shard_llama);
    shard_blocks(model, mesh, {.mesh_dim = "dp"});
    check_llama(model, mesh);
  }
}

TEST_CASE("fully_shard: counts") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  examples::Llama model = make_llama(3);
  shard_blocks(model, mesh, {});
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    CommDebugMode comm;
    distributed_loss(model, mesh).backward();
    std::cout << comm << "\n";
    for (auto& [m, n] : gathers(comm)) std::cout << m << " " << n << "\n";
    optimizer.step();
  }
  const DeviceMesh two(World::local(4), {2, 2}, {"dp", "tp"});
  model = make_llama(3);
  distribute_module(*model, two, examples::shard_llama);
  shard_blocks(model, two, {.mesh_dim = "dp"});
  CommDebugMode comm;
  distributed_loss(model, two).backward();
  std::cout << comm << "\n";
}

}  // namespace dtensor
