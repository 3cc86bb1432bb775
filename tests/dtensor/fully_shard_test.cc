// fully_shard(): training as on one device, with one gather per group and use and one reduction per group.
#include "dtensor/fully_shard.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "tests/examples/small_llama.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using torch::Tensor;

examples::Llama make_llama(int64_t layers) {
  torch::manual_seed(3);
  examples::Llama model(small_llama(layers));
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

TEST_CASE("fully_shard: a step of a Llama gathers each block twice, the last one and the rest once") {
  for (const DeviceMesh& mesh :
       {DeviceMesh(World::local(4), {4}, {"dp"}), DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"})}) {
    CAPTURE(mesh.to_string());
    examples::Llama model = make_llama(3);
    if (mesh.ndim() > 1) distribute_module(*model, mesh, examples::shard_llama);
    shard_blocks(model, mesh, {.mesh_dim = "dp"});
    torch::optim::AdamW optimizer(model->parameters(), 1e-2);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      CommDebugMode comm;
      distributed_loss(model, mesh).backward();
      INFO(c10::str(comm));
      std::map<std::string, int> gathers, reductions;
      for (const CommEvent& e : comm.events()) {
        if (e.cause.op != "gather" && e.cause.op != "gradient") continue;
        CHECK(e.mesh_dims == "dp");
        ++(e.cause.op == "gather" ? gathers : reductions)[e.cause.module_path];
        CHECK(e.collective == (e.cause.op == "gather" ? Collective::kAllGather : Collective::kReduceScatter));
      }
      CHECK(gathers == std::map<std::string, int>{{"", 1}, {"blocks.0", 2}, {"blocks.1", 2}, {"blocks.2", 1}});
      CHECK(reductions == std::map<std::string, int>{{"", 1}, {"blocks.0", 1}, {"blocks.1", 1}, {"blocks.2", 1}});
      optimizer.step();
    }
  }
}

namespace {

// Uneven sizes, a weight that two layers share, a frozen layer, and a parameter without dims.
struct MixedImpl : torch::nn::Module {
  MixedImpl()
      : first(register_module("first", torch::nn::Linear(5, 7))),
        frozen(register_module("frozen", torch::nn::Linear(7, 7))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})))),
        last(register_module("last", torch::nn::Linear(5, 7))),
        scale(register_parameter("scale", torch::ones({}))) {
    for (Tensor& p : frozen->parameters()) p.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = norm(torch::gelu(frozen(torch::tanh(first(x)))));
    return torch::matmul(y, last->weight) * scale + last->bias.sum();
  }

  torch::nn::Linear first, frozen;
  torch::nn::LayerNorm norm;
  torch::nn::Linear last;
  Tensor scale;
};
TORCH_MODULE(Mixed);

Mixed make_mixed() {
  torch::manual_seed(1);
  Mixed model;
  model->to(torch::kDouble);
  model->last->weight.set_data(model->first->weight.detach());
  return model;
}

}  // namespace

namespace {

// Three steps of AdamW beside those on one device, with one gather and one reduction each.
void check_mixed(Mixed model, const DeviceMesh& mesh) {
  Mixed plain = make_mixed();
  const Tensor x = torch::arange(40, torch::kDouble).view({8, 5}).sin();
  const Tensor shared = distribute_tensor(x, mesh, {Shard(0)});
  torch::optim::AdamW plain_optimizer(plain->parameters(), 1e-2), optimizer(model->parameters(), 1e-2);
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    optimizer.zero_grad();
    plain->forward(x).square().mean().backward();
    CommDebugMode comm;
    model->forward(shared).square().mean().backward();
    CHECK(comm.counts().at("all_gather") == 1);
    CHECK(comm.counts().at("reduce_scatter") == 1);
    plain_optimizer.step();
    optimizer.step();
    const auto expected = plain->named_parameters();
    for (const auto& p : model->named_parameters()) {
      INFO(p.key());
      CHECK(torch::allclose(whole(p.value()), expected[p.key()], 1e-9, 1e-11));
    }
  }
}

}  // namespace

TEST_CASE("fully_shard: uneven, tied, frozen parameters and one without dims train as on one device") {
  for (const int64_t size : {2, 3, 4}) {
    for (const bool is_replicated : {false, true}) {
      CAPTURE(size, is_replicated);
      const DeviceMesh mesh(World::local(size), {size}, {"dp"});
      Mixed model = make_mixed();
      if (is_replicated) distribute_module(*model, mesh);
      fully_shard(*model, mesh);
      CHECK(to_string(DTensor(model->scale).placements()) == "R");
      check_mixed(model, mesh);
    }
  }
}

TEST_CASE("fully_shard: parameters that are equal parts of one tensor keep their own values") {
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  const auto options = torch::nn::LinearOptions(3, 4).bias(false);
  torch::nn::Linear parts[2] = {torch::nn::Linear(options), torch::nn::Linear(options)};
  torch::nn::Sequential model(parts[0], parts[1]);
  model->to(torch::kDouble);
  const Tensor values = torch::arange(24, torch::kDouble).view({8, 3});
  const torch::NoGradGuard no_grad;
  const Tensor fused = distribute_tensor(values, mesh, {Replicate()});
  for (int64_t i = 0; i < 2; ++i) parts[i]->weight.set_data(fused.narrow(0, 4 * i, 4));
  fully_shard(*model, mesh);
  for (int64_t i = 0; i < 2; ++i) {
    CHECK(to_string(DTensor(parts[i]->weight).placements()) == "S(0)");
    CHECK(torch::equal(full_tensor(parts[i]->weight), values.narrow(0, 4 * i, 4)));
  }
}

namespace {

// A layer and its norm; the module has a buffer, but no parameter that is not of the layer or the norm.
struct NormedImpl : torch::nn::Module {
  struct Layer : torch::nn::Module {
    Layer()
        : linear(register_module("linear", torch::nn::Linear(5, 7))),
          weight(register_parameter("weight", torch::linspace(1, 2, 7))) {}
    torch::nn::Linear linear;
    Tensor weight;
  };
  NormedImpl()
      : layer(register_module("layer", std::make_shared<Layer>())),
        offset(register_buffer("offset", torch::linspace(0, 1, 7))) {}
  Tensor forward(const Tensor& x) { return torch::rms_norm(layer->linear(x), {7}, layer->weight) + offset; }

  std::shared_ptr<Layer> layer;
  Tensor offset;
};
TORCH_MODULE(Normed);

Normed make_normed() {
  torch::manual_seed(2);
  Normed model;
  model->to(torch::kDouble);
  return model;
}

// Both have a parameter in common.
struct WithSharedImpl : torch::nn::Module {
  explicit WithSharedImpl(const Tensor& common)
      : own(register_parameter("own", torch::ones({4}))), shared(register_parameter("shared", common)) {}
  Tensor own, shared;
};

}  // namespace

TEST_CASE(
    "fully_shard: a module whose parameters have a group has its buffers replicated, and norms gather no weight") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  Normed plain = make_normed(), model = make_normed();
  fully_shard(*model->layer, mesh);
  fully_shard(*model, mesh);
  CHECK(to_string(DTensor(model->offset).placements()) == "R");
  const Tensor x = torch::arange(40, torch::kDouble).view({8, 5}).sin();
  const Tensor shared = distribute_tensor(x, mesh, {Shard(0)});
  plain->forward(x).square().sum().backward();
  CommDebugMode comm;
  model->forward(shared).square().sum().backward();
  CHECK(comm.counts().at("all_gather") == 1);
  CHECK(comm.counts().at("reduce_scatter") == 1);
  const auto expected = plain->named_parameters();
  for (const auto& p : model->named_parameters()) {
    INFO(p.key());
    CHECK(torch::allclose(whole(p.value().grad()), expected[p.key()].grad(), 1e-9, 1e-11));
  }
  comm.reset();
  const torch::NoGradGuard no_grad;
  (void)at::_fused_rms_norm(model->layer->linear(shared), {7}, model->layer->weight, 1e-5);
  CHECK(comm.total() == 1);
}

TEST_CASE("fully_shard: modules that share a parameter, and a second call, are refused with what to do") {
  using Catch::Contains;
  using testing::error_text;
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  const Tensor common = torch::ones({4});
  const auto first = std::make_shared<WithSharedImpl>(common), second = std::make_shared<WithSharedImpl>(common);
  fully_shard(*first, mesh);
  CHECK_THAT(error_text([&] { fully_shard(*second, mesh); }),
             Contains("'shared' of") && Contains("in one group with 'own'") && Contains("share a parameter"));
  CHECK(!is_dtensor(second->own));
  CHECK_THAT(error_text([&] { fully_shard(*first, mesh); }), Contains("are in one group already"));
}

}  // namespace dtensor
