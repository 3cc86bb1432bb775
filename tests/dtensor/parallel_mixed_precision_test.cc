// parallelize_module() with mixed precision: operators in param_dtype, parameters, gradients and optimizer states in
// their own dtype, gradients reduced in that or in reduce_dtype.
#include <ATen/autocast_mode.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <memory>
#include <vector>

#include "dtensor/dtensor.h"
#include "tests/dtensor/parallel_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using testing::batch_on;
using testing::error_text;
using testing::LanguageModel;
using testing::Mlp;
using torch::Tensor;

const MixedPrecision kBFloat16Parameters{.param_dtype = torch::kBFloat16};
const ParallelPlan kMlpPlan{{"up", ColwiseParallel()}, {"down", RowwiseParallel()}};

// The table, the norms of layer 1 and the head have no style.
ParallelPlan plan_of_some_modules() {
  return {{"layers.0.*norm", SequenceParallel()},
          {"layers.*.attn.w[qkv]", ColwiseParallel()},
          {"layers.*.attn.wo", RowwiseParallel({.output = Shard(1)})},
          {"*.mlp.up", ColwiseParallel()},
          {"*.mlp.down", RowwiseParallel({.output = Shard(1)})}};
}

// Sizes that the ranks share unevenly.
std::vector<DeviceMesh> meshes() {
  return {DeviceMesh(World::local(2), {2}, {"tp"}), DeviceMesh(World::local(3), {3}, {"tp"}),
          DeviceMesh(World::local(6), {2, 3}, {"dp", "tp"})};
}

template <typename M, typename... Args>
M make(c10::ScalarType dtype, Args... args) {
  torch::manual_seed(5);
  M model(args...);
  model->to(dtype);
  return model;
}

Tensor ids() { return torch::arange(28).view({4, 7}) * 5 % 11; }

double largest_difference(const Tensor& t, const Tensor& plain) {
  const Tensor whole = (is_dtensor(t) ? full_tensor(t) : t).to(torch::kDouble), wanted = plain.to(torch::kDouble);
  return ((whole - wanted).abs().max() / wanted.abs().max()).item<double>();
}

void check_gradients(const nn::Module& model, const nn::Module& plain, double tolerance) {
  const auto expected = plain.named_parameters();
  for (const auto& p : model.named_parameters()) {
    INFO(p.key());
    const Tensor gradient = p.value().grad();
    REQUIRE(gradient.defined());
    CHECK(gradient.scalar_type() == p.value().scalar_type());
    CHECK(DTensor(gradient).placements() == DTensor(p.value()).placements());
    CHECK(largest_difference(gradient, expected[p.key()].grad()) < tolerance);
  }
}

std::vector<CommEvent> reductions_of(const CommDebugMode& comm) {
  std::vector<CommEvent> result;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "gradient" || e.cause.op == "reduce_gradients") result.push_back(e);
  }
  return result;
}

}  // namespace

TEST_CASE("mixed precision of styles: float64 parameters that operators take in float32 train as a float32 model") {
  for (const DeviceMesh& mesh : meshes()) {
    CAPTURE(mesh.to_string());
    auto model = make<LanguageModel>(torch::kDouble, 11, 8), plain = make<LanguageModel>(torch::kFloat, 11, 8);
    parallelize_module(*model, mesh, plan_of_some_modules(),
                       {.mesh_dim = "tp", .mixed_precision = {.param_dtype = torch::kFloat}});
    torch::optim::AdamW optimizer(model->parameters(), 1e-2), plain_optimizer(plain->parameters(), 1e-2);
    for (int step = 0; step < 2; ++step) {
      INFO("step " << step);
      optimizer.zero_grad();
      plain_optimizer.zero_grad();
      const Tensor result = model(batch_on(mesh, ids())), expected = plain(ids());
      CHECK(result.scalar_type() == torch::kFloat);
      CHECK(largest_difference(result, expected) < 1e-4);
      result.square().sum().backward();
      expected.square().sum().backward();
      check_gradients(*model, *plain, 1e-3);
      optimizer.step();
      plain_optimizer.step();
    }
    CHECK_NOTHROW(check_styles_ran(*model));
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(*optimizer.state().begin()->second);
    CHECK(state.exp_avg().scalar_type() == torch::kDouble);
    CHECK(model->head->weight.scalar_type() == torch::kDouble);
  }
}

TEST_CASE("mixed precision of styles: a step has the collectives that it has without, activations in half the bytes") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const auto run = [&](const MixedPrecision& precision) {
    auto mlp = make<Mlp>(torch::kFloat, 6, 10);
    parallelize_module(*mlp, mesh, kMlpPlan, {.mesh_dim = "tp", .mixed_precision = precision});
    const Tensor x = batch_on(mesh, torch::ones({4, 6}));
    CommDebugMode comm;
    mlp(x).to(torch::kFloat).square().sum().backward();
    CHECK(x.grad().scalar_type() == torch::kFloat);
    return comm.events();
  };
  const auto events = run(kBFloat16Parameters), expected = run({});
  REQUIRE(events.size() == expected.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const bool is_gradient = events[i].cause.op == "gradient";
    INFO(events[i].cause.op);
    CHECK(events[i].cause.op == expected[i].cause.op);
    CHECK(events[i].collective == expected[i].collective);
    CHECK(events[i].dtype == (is_gradient ? torch::kFloat : torch::kBFloat16));
    CHECK(events[i].bytes == (is_gradient ? expected[i].bytes : expected[i].bytes / 2));
  }
}

TEST_CASE("mixed precision of styles: gradients are reduced in reduce_dtype, and arrive in the parameters' dtype") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  auto mlp = make<Mlp>(torch::kDouble, 6, 10), plain = make<Mlp>(torch::kDouble, 6, 10);
  parallelize_module(*mlp, mesh, kMlpPlan, {.mesh_dim = "tp", .mixed_precision = {.reduce_dtype = torch::kFloat}});
  const Tensor input = torch::linspace(-1, 2, 24, torch::kDouble).view({4, 6});
  const Tensor x = distribute_tensor(input, mesh, {Shard(0), Replicate()});
  for (const bool is_delayed : {false, true}) {
    CAPTURE(is_delayed);
    mlp->zero_grad();
    plain->zero_grad();
    CommDebugMode comm;
    {
      const auto delay = is_delayed ? std::make_unique<DelayGradientReduction>() : nullptr;
      mlp(x).square().sum().backward();
    }
    if (is_delayed) reduce_gradients(mlp->parameters());
    plain(input).square().sum().backward();
    check_gradients(*mlp, *plain, 1e-6);
    CHECK(largest_difference(mlp->up->weight.grad(), plain->up->weight.grad()) > 1e-12);  // rounded
    const auto reductions = reductions_of(comm);
    REQUIRE(reductions.size() == 1);
    CHECK(reductions[0].dtype == torch::kFloat);
  }
}

TEST_CASE("mixed precision of styles: in bfloat16 a model gives what the rounded one gives, also its gradients") {
  for (const DeviceMesh& mesh : meshes()) {
    CAPTURE(mesh.to_string());
    auto model = make<LanguageModel>(torch::kFloat, 11, 8), plain = make<LanguageModel>(torch::kFloat, 11, 8);
    parallelize_module(*model, mesh, plan_of_some_modules(),
                       {.mesh_dim = "tp", .mixed_precision = kBFloat16Parameters});
    const Tensor result = model(batch_on(mesh, ids())), expected = plain(ids());
    CHECK(result.scalar_type() == torch::kBFloat16);
    CHECK(largest_difference(result, expected) < 0.05);
    CHECK(largest_difference(result, expected) > 1e-4);
    result.to(torch::kFloat).square().sum().backward();
    expected.square().sum().backward();
    check_gradients(*model, *plain, 0.1);
  }
}

TEST_CASE("mixed precision of styles: a submodule keeps that of an earlier call, and takes its inputs in it") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  auto model = make<LanguageModel>(torch::kFloat, 11, 8);
  parallelize_module(*model->norm, mesh, {}, {.mixed_precision = {.param_dtype = torch::kDouble}});
  parallelize_module(*model->head, mesh, {}, {.mixed_precision = {.param_dtype = torch::kFloat}});
  parallelize_module(*model, mesh, {{"*norm", SequenceParallel()}}, {.mixed_precision = kBFloat16Parameters});
  const Tensor x = model->layers->forward(model->embed(distribute_tensor(ids(), mesh)));
  CHECK(x.scalar_type() == torch::kBFloat16);
  CHECK(model->norm(x).scalar_type() == torch::kDouble);
  CHECK(model->head(model->norm(x)).scalar_type() == torch::kFloat);
  CHECK(model->head(x).scalar_type() == torch::kFloat);  // as the parameter is, so that only the input is cast
  parallelize_module(*model, mesh, {{"head", ColwiseParallel()}});
  CHECK(model->layers->forward(model->embed(distribute_tensor(ids(), mesh))).scalar_type() == torch::kBFloat16);
}

TEST_CASE("mixed precision of styles: autocast chooses the dtypes itself, and optimizers compute in float32") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  auto mlp = make<Mlp>(torch::kFloat, 6, 10);
  parallelize_module(*mlp, mesh, kMlpPlan, {.mixed_precision = {.param_dtype = torch::kHalf}});
  const Tensor x = distribute_tensor(torch::ones({4, 6}), mesh);
  CHECK(mlp(x).scalar_type() == torch::kHalf);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = mlp(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(y.scalar_type() == torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  CHECK((mlp->up->weight * 0.5).scalar_type() == torch::kFloat);
  CHECK(torch::lerp(mlp->up->weight, torch::ones_like(mlp->up->weight), 0.5).scalar_type() == torch::kFloat);
  CHECK(torch::addcmul(mlp->up->bias, mlp->up->bias, mlp->up->bias).scalar_type() == torch::kFloat);
}

TEST_CASE(
    "mixed precision of styles: new contents of a parameter, and blocks in checkpoint(), compute in param_dtype") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  auto mlp = make<Mlp>(torch::kFloat, 6, 10), whole = make<Mlp>(torch::kFloat, 6, 10);
  for (Mlp& m : {std::ref(mlp), std::ref(whole)}) {
    parallelize_module(*m, mesh, kMlpPlan, {.mixed_precision = kBFloat16Parameters});
    m->up->weight.set_data(m->up->weight.detach() * 2);
  }
  const Tensor x = distribute_tensor(torch::linspace(-1, 1, 24).view({4, 6}), mesh);
  const Tensor y = checkpoint([&](const Tensor&in) { return mlp(in); }, x), expected = whole(x);
  CHECK(y.scalar_type() == torch::kBFloat16);
  CHECK(torch::equal(full_tensor(y), full_tensor(expected)));
  y.to(torch::kFloat).square().sum().backward();
  expected.to(torch::kFloat).square().sum().backward();
  for (size_t i = 0; i < mlp->parameters().size(); ++i)
    CHECK(torch::equal(full_tensor(mlp->parameters()[i].grad()), full_tensor(whole->parameters()[i].grad())));
}

TEST_CASE("mixed precision of styles and fully_shard() is one: another one is an error, the same trains") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const ParallelizeOptions half{.mesh_dim = "tp", .mixed_precision = kBFloat16Parameters};
  const auto shard = [&](Mlp& mlp, const MixedPrecision& precision) {
    fully_shard(*mlp, mesh, {.mesh_dim = "dp", .mixed_precision = precision});
  };
  auto mlp = make<Mlp>(torch::kFloat, 6, 10), grouped = make<Mlp>(torch::kFloat, 6, 10);
  parallelize_module(*mlp, mesh, kMlpPlan, half);
  CHECK_THAT(
      error_text([&] { shard(mlp, {}); }),
      Catch::Contains("[fully_shard] 'up.weight' has param_dtype BFloat16, no reduce_dtype from an earlier call") &&
          Catch::Contains("gives no param_dtype, no reduce_dtype"));
  CHECK_THAT(error_text([&] { shard(mlp, {.param_dtype = torch::kHalf}); }), Catch::Contains("param_dtype Half"));
  CHECK(DTensor(mlp->up->weight).placements() == Placements{Replicate(), Shard(0)});

  shard(grouped, {});
  CHECK_THAT(error_text([&] { parallelize_module(*grouped, mesh, {}, half); }),
             Catch::Contains("[parallelize_module] 'up.weight' has no param_dtype"));
  CHECK(explain_module(*grouped).find("ColwiseParallel") == std::string::npos);

  shard(mlp, kBFloat16Parameters);
  const Tensor x = batch_on(mesh, torch::linspace(-1, 1, 24).view({4, 6}));
  CommDebugMode comm;
  const Tensor y = mlp(x);
  CHECK(y.scalar_type() == torch::kBFloat16);
  CHECK(comm.counts().at("all_gather") == 1);
  y.to(torch::kFloat).square().sum().backward();
  auto plain = make<Mlp>(torch::kFloat, 6, 10);
  plain(torch::linspace(-1, 1, 24).view({4, 6})).square().sum().backward();
  check_gradients(*mlp, *plain, 0.1);
}

TEST_CASE("mixed precision of styles: dtypes that are no floating-point ones are refused before anything changes") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  auto mlp = make<Mlp>(torch::kFloat, 6, 10);
  const auto text = [&](const MixedPrecision& precision) {
    return error_text([&] { parallelize_module(*mlp, mesh, kMlpPlan, {.mixed_precision = precision}); });
  };
  CHECK_THAT(text({.param_dtype = torch::kInt}),
             Catch::Contains("[parallelize_module] mixed_precision.param_dtype is Int"));
  CHECK_THAT(text({.reduce_dtype = torch::kBool}), Catch::Contains("mixed_precision.reduce_dtype is Bool"));
  CHECK(!is_dtensor(mlp->up->weight));
}

TEST_CASE("mixed precision of styles: a step on 64 ranks without data has the collectives of a step with data") {
  const auto run = [](const World& world) {
    const DeviceMesh mesh(world, {world.size() / 2, 2}, {"dp", "tp"});
    auto mlp = make<Mlp>(torch::kFloat, 6, 10);
    parallelize_module(*mlp, mesh, kMlpPlan, {.mesh_dim = "tp", .mixed_precision = kBFloat16Parameters});
    CommDebugMode comm;
    const Tensor y = mlp(zeros({64, 6}, mesh, {Shard(0), Replicate()}));
    CHECK(y.scalar_type() == torch::kBFloat16);
    y.sum().backward();
    return comm.counts();
  };
  CHECK(run(World::abstract(64)) == run(World::local(4)));
}

}  // namespace dtensor
