// Parallel styles against the plain module: values, gradients and collectives.
#include "dtensor/parallelize_module.h"

#include <torch/nn.h>

#include <functional>

#include "dtensor/dtensor_handle.h"
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
using testing::batch_on;
using testing::Counts;
using testing::counts_of;
using testing::Mlp;
using testing::style_meshes;
using torch::Tensor;

using MakeModule = std::function<nn::AnyModule()>;

template <typename M>
MakeModule maker(M module) {
  module->to(torch::kDouble);
  return [module] { return nn::AnyModule(std::dynamic_pointer_cast<typename M::ContainedType>(module->clone())); };
}

// Output, gradients of the input and of all parameters as those of the plain module.
void check_like_plain(const MakeModule& make, const ParallelStyle& style, const Tensor& x) {
  nn::AnyModule plain = make();
  const Tensor plain_x = x.is_floating_point() ? x.clone().requires_grad_() : x;
  const Tensor expected = plain.forward(plain_x);
  const Tensor factors = torch::rand_like(expected);
  (expected * factors).sum().backward();
  for (const DeviceMesh& mesh : style_meshes()) {
    nn::AnyModule model = make();
    INFO(style.to_string() << " on " << mesh.to_string());
    parallelize_module(*model.ptr(), mesh, {{"", style}}, {.mesh_dim = "tp"});
    const Tensor in = batch_on(mesh, x), out = model.forward(in);
    CHECK(torch::allclose(full_tensor(out), expected));
    (out * distribute_tensor(factors, mesh)).sum().backward();
    if (in.requires_grad()) CHECK(torch::allclose(full_tensor(in.grad()), plain_x.grad()));
    for (const auto& p : model.ptr()->named_parameters()) {
      INFO(p.key());
      CHECK(DTensor(p.value().grad()).placements() == DTensor(p.value()).placements());
      CHECK(torch::allclose(full_tensor(p.value().grad()), plain.ptr()->named_parameters()[p.key()].grad()));
    }
    check_styles_ran(*model.ptr());
  }
}

}  // namespace

TEST_CASE("parallel styles: column-wise, row-wise and sequence-parallel Linear compute what the plain one does") {
  torch::manual_seed(0);
  const Tensor x = torch::randn({6, 5, 7}, torch::kDouble);
  for (const bool bias : {true, false}) {
    const MakeModule make = maker(nn::Linear(nn::LinearOptions(7, 9).bias(bias)));
    check_like_plain(make, ColwiseParallel(), x);
    check_like_plain(make, ColwiseParallel({.output = Replicate()}), x);
    check_like_plain(make, ColwiseParallel({.input = Shard(1), .output = Shard(-2)}), x);
    check_like_plain(make, RowwiseParallel(), x);
    check_like_plain(make, RowwiseParallel({.output = Shard(1)}), x);
    check_like_plain(make, SequenceParallel(), x);
  }
}

TEST_CASE("parallel styles: sharded tables look up what whole ones do") {
  torch::manual_seed(0);
  const MakeModule table = maker(nn::Embedding(11, 5)), bag = maker(nn::EmbeddingBag(11, 5));
  const Tensor ids = torch::randint(11, {4, 7});
  for (const MakeModule& make : {table, bag}) {
    check_like_plain(make, ColwiseParallel(), ids);
    check_like_plain(make, RowwiseParallel(), ids);
    check_like_plain(make, RowwiseParallel({.output = Shard(-1)}), ids);
  }
}

TEST_CASE("parallel styles: convolutions sharded by output or input channels compute what the plain ones do") {
  torch::manual_seed(0);
  const auto check = [](const MakeModule& make, const Tensor& x) {
    check_like_plain(make, ColwiseParallel(), x);
    check_like_plain(make, RowwiseParallel(), x);
  };
  check(maker(nn::Conv1d(nn::Conv1dOptions(3, 5, 2))), torch::randn({2, 3, 6}, torch::kDouble));
  check(maker(nn::Conv2d(nn::Conv2dOptions(3, 5, 2))), torch::randn({2, 3, 6, 4}, torch::kDouble));
  check(maker(nn::Conv3d(nn::Conv3dOptions(3, 5, 2))), torch::randn({2, 3, 4, 4, 3}, torch::kDouble));
  check(maker(nn::ConvTranspose1d(nn::ConvTranspose1dOptions(3, 5, 2))), torch::randn({2, 3, 6}, torch::kDouble));
  check(maker(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(3, 5, 2))), torch::randn({2, 3, 6, 4}, torch::kDouble));
  check(maker(nn::ConvTranspose3d(nn::ConvTranspose3dOptions(3, 5, 2))), torch::randn({2, 3, 4, 4, 3}, torch::kDouble));
}

TEST_CASE("parallel styles: modules of other types take and give the layouts that are asked for") {
  torch::manual_seed(0);
  const Tensor x = torch::randn({4, 5, 6}, torch::kDouble);
  check_like_plain(maker(nn::LayerNorm(nn::LayerNormOptions({6}))), SequenceParallel(), x);
  check_like_plain(maker(nn::GroupNorm(nn::GroupNormOptions(1, 5))), SequenceParallel({.input = Shard(-1)}), x);
  check_like_plain(maker(nn::PReLU(nn::PReLUOptions().num_parameters(5))), PrepareInput({.input = Shard(2)}), x);
  check_like_plain(maker(nn::LayerNorm(nn::LayerNormOptions({6}))), PrepareOutput({.output = Shard(2)}), x);
  check_like_plain(maker(nn::LayerNorm(nn::LayerNormOptions({6}))),
                   ParameterStyle({{"weight", Shard(0)}}, {.input = Replicate(), .output = Shard(1)}), x);
}

TEST_CASE("parallel styles: input and output have the layouts of the style, on the style's mesh dim alone") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  nn::Linear up(6, 10), down(10, 6);
  parallelize_module(*up, mesh, {{"", ColwiseParallel()}}, {.mesh_dim = "tp"});
  parallelize_module(*down, mesh, {{"", RowwiseParallel({.output = Shard(-2)})}}, {.mesh_dim = "tp"});
  CHECK(DTensor(up->weight).placements() == Placements{Replicate(), Shard(0)});
  CHECK(DTensor(up->bias).placements() == Placements{Replicate(), Shard(0)});
  CHECK(DTensor(down->weight).placements() == Placements{Replicate(), Shard(1)});
  CHECK(DTensor(down->bias).placements() == Placements{Replicate(), Replicate()});
  const Tensor x = distribute_tensor(torch::randn({4, 5, 6}), mesh, {Shard(0), Shard(1)});
  const Tensor y = up(x), z = down(y);
  CHECK(DTensor(y).placements() == Placements{Shard(0), Shard(2)});
  CHECK(DTensor(z).placements() == Placements{Shard(0), Shard(1)});
}

TEST_CASE("parallel styles: a column-wise and a row-wise Linear take one all_reduce forward and one backward") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  Mlp mlp(8, 16);
  parallelize_module(*mlp, mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
  const Tensor x = distribute_tensor(torch::randn({4, 6, 8}), mesh).requires_grad_();
  CommDebugMode comm;
  const Tensor y = mlp(x);
  CHECK(counts_of(comm) == Counts{{"all_reduce", 1}});
  CHECK_THAT(comm.to_string(), Catch::Contains("RowwiseParallel output"));
  comm.reset();
  y.backward(torch::ones_like(y));
  CHECK(counts_of(comm) == Counts{{"all_reduce", 1}});
}

TEST_CASE("parallel styles: a sequence-parallel MLP takes all_gather and reduce_scatter, each way") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  Mlp mlp(8, 16);
  parallelize_module(*mlp, mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel({.output = Shard(1)})}});
  const Tensor x = distribute_tensor(torch::randn({4, 8, 8}), mesh, {Shard(1)}).requires_grad_();
  CommDebugMode comm;
  const Tensor y = mlp(x);
  CHECK(counts_of(comm) == Counts{{"all_gather", 1}, {"reduce_scatter", 1}});
  const Tensor factors = distribute_tensor(torch::randn({4, 8, 8}), mesh, {Shard(1)});
  comm.reset();
  y.backward(factors);
  CHECK(DTensor(x.grad()).placements() == Placements{Shard(1)});
  // The bias after the sum is replicated: each rank has the gradient of its part of the sequence.
  CHECK(counts_of(comm) == Counts{{"all_gather", 1}, {"reduce_scatter", 1}, {"all_reduce", 1}});
}

TEST_CASE("parallel styles: apply in a Sequential, in typed members, and in functions that get the weight") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  nn::Sequential model(nn::Linear(4, 6), nn::ReLU(), nn::Linear(6, 4));
  const Tensor x = torch::randn({3, 4});
  const Tensor expected = model->forward(x);
  parallelize_module(*model, mesh, {{"0", ColwiseParallel()}, {"2", RowwiseParallel({.output = Shard(0)})}});
  const Tensor in = distribute_tensor(x, mesh, {Shard(0)});
  const Tensor y = model->forward(in);
  CHECK(torch::allclose(full_tensor(y), expected, 1e-4, 1e-6));
  CHECK(DTensor(y).placements() == Placements{Shard(0)});

  Mlp mlp(4, 6);
  const Tensor through_plain = torch::linear(x, mlp->up->weight);
  parallelize_module(*mlp, mesh, {{"up", ColwiseParallel({.output = Shard(0)})}});
  const std::vector<Tensor> results{torch::linear(in, mlp->up->weight), in.matmul(mlp->up->weight.t()),
                                    in.mm(mlp->up->weight.t()), torch::einsum("ni,oi->no", {in, mlp->up->weight})};
  for (const Tensor& result : results) {
    CHECK(DTensor(result).placements() == Placements{Shard(0)});
    CHECK(torch::allclose(full_tensor(result), through_plain, 1e-4, 1e-6));
  }
}

TEST_CASE("parallel styles: a Linear written by hand takes the collectives of nn::Linear") {
  torch::manual_seed(0);
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const Tensor x = torch::randn({4, 8, 8}, torch::kDouble);
  for (const ParallelStyle& style : {ColwiseParallel(), RowwiseParallel()}) {
    nn::Linear linear(8, 8);
    linear->to(torch::kDouble);
    const Tensor expected = linear(x);
    parallelize_module(*linear, mesh, {{"", style}});
    for (const Placement& placement : {Placement(Replicate()), Placement(Shard(1))}) {
      INFO(style.to_string() << " of " << to_string(placement));
      const Tensor in = distribute_tensor(x, mesh, {placement});
      CommDebugMode comm;
      const Tensor y = linear(in);
      const Counts counts = counts_of(comm);
      comm.reset();
      const Tensor by_hand = torch::matmul(in, linear->weight.t()) + linear->bias;
      CHECK(counts_of(comm) == counts);
      CHECK(DTensor(by_hand).placements() == DTensor(y).placements());
      CHECK(torch::allclose(full_tensor(by_hand), expected));
    }
  }
}

TEST_CASE("parallel styles: optimizers, averages and views do not follow a style") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  nn::Linear linear(4, 4);
  parallelize_module(*linear, mesh, {{"", ColwiseParallel()}});
  torch::NoGradGuard no_grad;
  const Tensor other = distribute_tensor(torch::randn({4, 4}), mesh);
  CommDebugMode comm;
  const Tensor average = linear->weight * 0.9 + other * 0.1, view = linear->weight.expand_as(other);
  const Tensor product = linear->weight * other, sum = torch::add(linear->weight, other);
  linear->weight.add_(other);
  CHECK(comm.total() == 0);
  CHECK_THROWS_WITH(check_styles_ran(*linear), Catch::Contains("no operator followed"));
}

TEST_CASE("parallel styles: a recurrent network takes and gives the layouts that are asked for") {
  torch::manual_seed(0);
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto options = nn::LSTMOptions(3, 4).batch_first(true);
  nn::LSTM plain(options), model(options);
  {
    torch::NoGradGuard no_grad;
    for (const auto& p : model->named_parameters()) p.value().copy_(plain->named_parameters()[p.key()]);
  }
  parallelize_module(*model, mesh, {{"", PrepareOutput({.input = Shard(0), .output = Replicate()})}});
  const Tensor x = torch::randn({4, 5, 3}), expected = std::get<0>(plain(x));
  const MeshScope scope(mesh);  // the first state
  const Tensor y = std::get<0>(model(distribute_tensor(x, mesh)));
  CHECK(DTensor(y).placements() == Placements{Replicate()});
  CHECK(torch::allclose(full_tensor(y), expected, 1e-4, 1e-6));
  CHECK_THAT(explain_module(*model), Catch::Contains("S(0) (style)") && Catch::Contains("R (style)"));
}

TEST_CASE("parallel styles: apply in inference mode, and in no backward") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  Mlp mlp(4, 6);
  nn::Embedding table(5, 4);
  parallelize_module(*mlp, mesh, {{"up", ColwiseParallel()}, {"down", RowwiseParallel({.output = Shard(0)})}});
  parallelize_module(*table, mesh, {{"", RowwiseParallel({.output = Shard(0)})}});
  const Tensor ids = distribute_tensor(torch::tensor({0, 3, 1, 4}), mesh);
  mlp(table(ids)).sum().backward();
  CHECK_THAT(explain_module(*mlp), Catch::Matches("(.|\n)*up .* 1\n(.|\n)*down .* 1\n"));
  const c10::InferenceMode inference;
  const Tensor rows = table(ids);
  CHECK(DTensor(rows).placements() == Placements{Shard(0)});
  CHECK(DTensor(mlp(rows)).placements() == Placements{Shard(0)});
  CHECK_THAT(explain_module(*mlp), Catch::Matches("(.|\n)*up .* 2\n(.|\n)*down .* 2\n"));
}

}  // namespace dtensor
