// Parallel styles on models of several modules: collectives, tied tables, training.
#include <torch/nn.h>
#include <torch/optim.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/parallel_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"
#include "tests/testing/traffic.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using testing::Attention;
using testing::batch_on;
using testing::Counts;
using testing::counts_of;
using testing::error_text;
using testing::HandNorm;
using testing::LanguageModel;
using testing::sequence_parallel_plan;
using testing::style_meshes;
using torch::Tensor;

}  // namespace

TEST_CASE("parallel styles: attention by heads takes one all_reduce forward and one backward") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  Attention attention(8, 4);
  parallelize_module(*attention, mesh, {{"w[qkv]", ColwiseParallel()}, {"wo", RowwiseParallel()}});
  const Tensor x = distribute_tensor(torch::randn({4, 6, 8}), mesh).requires_grad_();
  CommDebugMode comm;
  const Tensor y = attention(x);
  CHECK(counts_of(comm) == Counts{{"all_reduce", 1}});
  comm.reset();
  y.backward(torch::ones_like(y));
  CHECK(counts_of(comm) == Counts{{"all_reduce", 1}});
}

TEST_CASE("parallel styles: a table tied to the head follows its own style in lookups") {
  torch::manual_seed(0);
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor ids = torch::randint(9, {4, 5});
  const auto tied = [] {
    LanguageModel model(9, 8);
    model->head->weight.set_data(model->embed->weight.detach());
    model->to(torch::kDouble);
    model->head->weight.set_data(model->embed->weight.detach());
    return model;
  };
  LanguageModel plain = tied(), model = tied();
  {
    torch::NoGradGuard no_grad;
    for (const auto& p : model->named_parameters()) p.value().copy_(plain->named_parameters()[p.key()]);
  }
  parallelize_module(*model, mesh, {{"embed", RowwiseParallel({.output = Shard(1)})}, {"head", ColwiseParallel()}});
  const Tensor expected = plain(ids), y = model(distribute_tensor(ids, mesh));
  CHECK(torch::allclose(full_tensor(y), expected));
  CHECK(DTensor(y).placements() == Placements{Shard(2)});
  CHECK_NOTHROW(check_styles_ran(*model));
  expected.sum().backward();
  y.sum().backward();
  CHECK(torch::allclose(full_tensor(model->head->weight.grad()), plain->head->weight.grad()));
  CHECK(torch::allclose(full_tensor(model->embed->weight.grad()), plain->embed->weight.grad()));
}

TEST_CASE("parallel styles: tied modules with tensors of their own are distinguished") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  nn::Linear a(nn::LinearOptions(4, 4).bias(false)), b(nn::LinearOptions(4, 4).bias(false));
  b->weight.set_data(a->weight.detach());
  nn::Sequential pair({{"a", a}, {"b", b}});
  parallelize_module(*pair, mesh, {{"a", ColwiseParallel()}, {"b", ColwiseParallel()}});
  const Tensor x = distribute_tensor(torch::ones({2, 4}), mesh);
  torch::linear(x, a->weight);
  CHECK_THAT(error_text([&] { check_styles_ran(*pair); }),
             Catch::Contains("'b', ColwiseParallel") && !Catch::Contains("'a'"));
  torch::linear(x, b->weight);
  CHECK_THAT(error_text([&] { check_styles_ran(*pair); }),
             Catch::Contains("'a', ColwiseParallel") && !Catch::Contains("'b'"));
  a(x);  // a Linear computes with a view of its weight, which is one of b's, too
  CHECK_NOTHROW(check_styles_ran(*pair));

  nn::Embedding source(6, 4), target(6, 4);
  nn::Linear head(nn::LinearOptions(4, 6).bias(false));
  target->weight.set_data(source->weight.detach());
  head->weight.set_data(source->weight.detach());
  nn::Sequential three({{"source", source}, {"target", target}, {"head", head}});
  parallelize_module(*three, mesh,
                     {{"source", RowwiseParallel()}, {"target", RowwiseParallel()}, {"head", ColwiseParallel()}});
  const Tensor ids = distribute_tensor(torch::tensor({0, 3, 5}), mesh);
  source(ids);
  head(x);
  CHECK_THAT(error_text([&] { check_styles_ran(*three); }), Catch::Contains("'target', RowwiseParallel") &&
                                                                !Catch::Contains("'source'") &&
                                                                !Catch::Contains("'head'"));
  for (const Tensor& y : {source(ids), target(ids), head(x)}) CHECK(is_dtensor(y));
  CHECK_NOTHROW(check_styles_ran(*three));
}

TEST_CASE("parallel styles: the style of a table governs lookups alone") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  nn::Embedding table(6, 4);
  parallelize_module(*table, mesh, {{"", RowwiseParallel()}});
  torch::linear(distribute_tensor(torch::ones({2, 4}), mesh), table->weight);
  CHECK_THAT(error_text([&] { check_styles_ran(*table); }), Catch::Contains("RowwiseParallel"));
  table(distribute_tensor(torch::tensor({0, 3, 5}), mesh));
  CHECK_NOTHROW(check_styles_ran(*table));
}

TEST_CASE("parallel styles: a norm written by hand keeps the sequence sharded") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  HandNorm norm(6);
  parallelize_module(*norm, mesh, {{"", SequenceParallel()}});
  const Tensor x = torch::randn({3, 5, 6}), in = distribute_tensor(x, mesh, {Shard(1)});
  CommDebugMode comm;
  const Tensor y = norm(in);
  CHECK(DTensor(y).placements() == Placements{Shard(1)});
  CHECK(comm.total() == 0);
  CHECK(DTensor(norm(distribute_tensor(x, mesh))).placements() == Placements{Shard(1)});
  CHECK(torch::allclose(full_tensor(y), HandNorm(6)->forward(x)));
}

TEST_CASE("parallel styles: two blocks train as on one device, sequence-parallel") {
  for (const DeviceMesh& mesh : style_meshes()) {
    torch::manual_seed(0);
    LanguageModel plain(11, 8);
    plain->to(torch::kDouble);
    LanguageModel model(11, 8);
    model->to(torch::kDouble);
    {
      torch::NoGradGuard no_grad;
      for (const auto& p : model->named_parameters()) p.value().copy_(plain->named_parameters()[p.key()]);
    }
    parallelize_module(*model, mesh, sequence_parallel_plan(), {.mesh_dim = "tp"});
    torch::optim::AdamW plain_optimizer(plain->parameters(), 1e-2), optimizer(model->parameters(), 1e-2);
    const Tensor ids = torch::randint(11, {4, 6}), targets = torch::randint(11, {24});
    for (int step = 0; step < 3; ++step) {
      plain_optimizer.zero_grad();
      const Tensor expected = nn::functional::cross_entropy(plain(ids).flatten(0, 1), targets);
      expected.backward();
      plain_optimizer.step();
      MeshScope scope(mesh);
      optimizer.zero_grad();
      const Tensor logits = model(batch_on(mesh, ids));
      const Tensor loss = nn::functional::cross_entropy(logits.flatten(0, 1), batch_on(mesh, targets));
      loss.backward();
      optimizer.step();
      CHECK(std::abs(loss.item<double>() - expected.item<double>()) < 1e-10);
      check_styles_ran(*model);
    }
  }
}

}  // namespace dtensor
