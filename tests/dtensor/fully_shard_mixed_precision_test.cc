// fully_shard() with mixed precision: casts before the gather, whole groups in one gather, gradients in float32.
#include <ATen/autocast_mode.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <map>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "tests/testing/autocast.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using torch::Tensor;

struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, width + 3))),
        down(register_module("down", torch::nn::Linear(width + 3, width))) {}
  Tensor forward(const Tensor& x) { return x + down(torch::tanh(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Residual);

// A table, blocks of one width, and a head.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int64_t num_blocks)
      : table(register_module("table", torch::nn::Embedding(11, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, 3))) {
    for (int64_t i = 0; i < num_blocks; ++i) blocks->push_back(Residual(kWidth));
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = table(ids);
    for (const auto& block : *blocks) x = block->as<Residual>()->forward(x);
    return head(x);
  }

  static constexpr int64_t kWidth = 5;
  torch::nn::Embedding table;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Stack);

constexpr int64_t kBlocks = 3;

Stack make_stack(c10::ScalarType dtype) {
  torch::manual_seed(3);
  Stack model(kBlocks);
  model->to(dtype);
  return model;
}

Tensor token_ids() { return torch::arange(24).view({8, 3}) * 5 % 11; }

// Each block in a group of its own, and the rest in another.
void shard_blocks(Stack& model, const DeviceMesh& mesh, const FullyShardOptions& options) {
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, options);
  fully_shard(*model, mesh, options);
}

Tensor full(const Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

// The bytes of parameters of a module, whole, in elements of `element` bytes.
int64_t bytes_of(const torch::nn::Module& module, int64_t element) {
  int64_t elements = 0;
  for (const Tensor& p : module.parameters()) elements += p.numel();
  return elements * element;
}

void check_gradients(const torch::nn::Module& model, const torch::nn::Module& plain, double tolerance) {
  const auto expected = plain.named_parameters();
  for (const auto& p : model.named_parameters()) {
    INFO(p.key());
    const Tensor gradient = p.value().grad();
    REQUIRE(gradient.defined());
    CHECK(gradient.scalar_type() == p.value().scalar_type());
    CHECK(DTensor(gradient).placements() == DTensor(p.value()).placements());
    const Tensor wanted = expected[p.key()].grad().to(torch::kDouble);
    CHECK((full(gradient).to(torch::kDouble) - wanted).abs().max().item<double>() <=
          tolerance * wanted.abs().max().item<double>());
  }
}

const MixedPrecision kBFloat16Parameters{.param_dtype = torch::kBFloat16};

}  // namespace

TEST_CASE("fully_shard: float64 parameters that are gathered in float32 train as a float32 model") {
  for (const DeviceMesh& mesh : {DeviceMesh(World::local(4), {4}, {"dp"}), DeviceMesh(World::local(3), {3}, {"dp"}),
                                 DeviceMesh(World::local(4), {2, 2}, {"dp", "tp"})}) {
    CAPTURE(mesh.to_string());
    Stack model = make_stack(torch::kDouble), plain = make_stack(torch::kFloat);
    if (mesh.ndim() > 1) {
      distribute_module(*model, mesh, [](const std::string&, torch::nn::Module& m, const DeviceMesh& on) {
        if (m.as<torch::nn::Linear>() != nullptr) shard_parameter(m, "weight", on, {Replicate(), Shard(0)});
      });
    }
    shard_blocks(model, mesh, {.mesh_dim = "dp", .mixed_precision = {.param_dtype = torch::kFloat}});
    torch::optim::SGD optimizer(model->parameters(), 0.1), plain_optimizer(plain->parameters(), 0.1);
    Placements rows(mesh.ndim(), Replicate());
    rows[0] = Shard(0);
    for (int step = 0; step < 2; ++step) {
      INFO("step " << step);
      optimizer.zero_grad();
      plain_optimizer.zero_grad();
      const Tensor result = model->forward(distribute_tensor(token_ids(), mesh, rows));
      const Tensor expected = plain->forward(token_ids());
      CHECK(result.scalar_type() == torch::kFloat);
      CHECK(torch::allclose(full(result), expected, 1e-4, 1e-5));
      result.square().sum().backward();
      expected.square().sum().backward();
      check_gradients(*model, *plain, 1e-4);
      optimizer.step();
      plain_optimizer.step();
    }
    CHECK(model->head->weight.scalar_type() == torch::kDouble);
  }
}

TEST_CASE(
    "fully_shard: with param_dtype bfloat16 a gather takes half the bytes, and gradients are reduced in float32") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  for (const bool is_autocast : {false, true}) {
    CAPTURE(is_autocast);
    Stack model = make_stack(torch::kFloat);
    shard_blocks(model, mesh, {.mixed_precision = kBFloat16Parameters});
    const Tensor batch = distribute_tensor(token_ids(), mesh, {Shard(0)});
    CommDebugMode comm;
    Tensor loss;
    {
      const auto autocast = is_autocast ? std::make_unique<testing::Autocast>() : nullptr;
      loss = model->forward(batch).to(torch::kFloat).square().sum();
    }
    loss.backward();
    std::map<std::string, int> gathers, reductions;
    for (const CommEvent& e : comm.events()) {
      INFO(e.cause.op << " " << e.cause.argument);
      REQUIRE((e.cause.op == "gather" || e.cause.op == "gradient"));
      ++(e.cause.op == "gather" ? gathers : reductions)[e.cause.module_path];
      if (e.cause.module_path != "blocks.1") continue;
      const int64_t whole_bytes = bytes_of(*model->blocks[1], e.cause.op == "gather" ? 2 : 4);
      CHECK(e.bytes > whole_bytes * 3 / 4 - 40);  // uneven parts are padded or rounded
      CHECK(e.bytes < whole_bytes * 3 / 4 + 80);
    }
    CHECK(gathers == std::map<std::string, int>{{"", 1}, {"blocks.0", 2}, {"blocks.1", 2}, {"blocks.2", 1}});
    CHECK(reductions == std::map<std::string, int>{{"", 1}, {"blocks.0", 1}, {"blocks.1", 1}, {"blocks.2", 1}});
  }
}

TEST_CASE("fully_shard: bfloat16 parameters under autocast train as on one device under autocast") {
  const DeviceMesh mesh(World::local(3), {3}, {"dp"});
  Stack model = make_stack(torch::kFloat), plain = make_stack(torch::kFloat);
  shard_blocks(model, mesh, {.mixed_precision = kBFloat16Parameters});
  torch::optim::AdamW optimizer(model->parameters(), 1e-2), plain_optimizer(plain->parameters(), 1e-2);
  double first = 0, last = 0;
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    plain_optimizer.zero_grad();
    Tensor loss, expected;
    {
      const testing::Autocast autocast;
      loss = model->forward(distribute_tensor(token_ids(), mesh, {Shard(0)})).to(torch::kFloat).square().sum();
      expected = plain->forward(token_ids()).to(torch::kFloat).square().sum();
    }
    loss.backward();
    expected.backward();
    if (step == 0) {
      check_gradients(*model, *plain, 0.05);
      first = loss.item<double>();
    }
    last = loss.item<double>();
    optimizer.step();
    plain_optimizer.step();
    CHECK(last == Approx(expected.item<double>()).epsilon(0.03));
  }
  CHECK(last < first);
}

TEST_CASE("fully_shard: gradients are reduced in reduce_dtype, and have the dtype of the parameters") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  Stack model = make_stack(torch::kDouble), plain = make_stack(torch::kDouble);
  shard_blocks(model, mesh, {.mixed_precision = {.reduce_dtype = torch::kFloat}});
  const Tensor batch = distribute_tensor(token_ids(), mesh, {Shard(0)});
  for (int i = 0; i < 2; ++i) {
    CommDebugMode comm;
    model->forward(batch).square().sum().backward();
    plain->forward(token_ids()).square().sum().backward();
    for (const CommEvent& e : comm.events()) {
      if (e.cause.op != "gradient" || e.cause.module_path != "blocks.0") continue;
      CHECK(e.bytes < bytes_of(*model->blocks[0], 4));
    }
  }
  check_gradients(*model, *plain, 1e-5);
  model->zero_grad();
  plain->zero_grad();
  {
    const DelayGradientReduction delay;
    model->forward(batch).square().sum().backward();
  }
  plain->forward(token_ids()).square().sum().backward();
  CommDebugMode comm;
  reduce_gradients(model->parameters());
  CHECK(comm.bytes() < bytes_of(*model, 4));
  check_gradients(*model, *plain, 1e-5);
}

TEST_CASE(
    "fully_shard: an operator that casts nothing takes gathered values rounded to param_dtype, in its own dtype") {
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  torch::nn::LayerNorm layer(torch::nn::LayerNormOptions({5}));
  const Tensor values = torch::linspace(0.1, 0.77, 5), x = torch::arange(20, torch::kFloat).view({4, 5}).sin();
  {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(values);
  }
  fully_shard(*layer, mesh, {.mixed_precision = kBFloat16Parameters});
  const Tensor result = torch::lerp(distribute_tensor(x, mesh, {Shard(0)}), layer->weight, 0.5);
  CHECK(result.scalar_type() == torch::kFloat);
  CHECK(torch::equal(full(result), torch::lerp(x, values.to(torch::kBFloat16).to(torch::kFloat), 0.5)));
  CHECK(!torch::equal(full(result), torch::lerp(x, values, 0.5)));
}

namespace {

struct LayerOfGroup {
  DeviceMesh mesh{World::local(4), {4}, {"dp"}};
  torch::nn::Linear layer{torch::nn::LinearOptions(5, 6)}, plain{torch::nn::LinearOptions(5, 6)};
  Tensor input = torch::arange(40, torch::kFloat).view({8, 5}).sin();
  Tensor x = distribute_tensor(input, mesh, {Shard(0)});

  LayerOfGroup() {
    const torch::NoGradGuard no_grad;
    for (auto* l : {&layer, &plain}) {
      (*l)->weight.copy_(torch::arange(30, torch::kFloat).view({6, 5}).cos());
      (*l)->bias.copy_(torch::linspace(-1, 1, 6));
    }
    fully_shard(*layer, mesh, {.mixed_precision = kBFloat16Parameters});
  }
  void write_parameters() {
    const torch::NoGradGuard no_grad;
    for (auto* l : {&layer, &plain}) (*l)->weight.mul_(3);
  }
};

bool are_close(const Tensor& t, const Tensor& expected) {
  const Tensor wanted = expected.to(torch::kFloat), error = full(t).to(torch::kFloat) - wanted;
  return (error.abs().max() <= wanted.abs().max() * 0.03).item<bool>();
}

}  // namespace

TEST_CASE(
    "fully_shard: a parameter written to between forward and backward under autocast gives the gradient of before") {
  LayerOfGroup of;
  Tensor inputs[] = {of.x.clone().requires_grad_(), of.input.clone().requires_grad_()};
  Tensor results[2];
  {
    const testing::Autocast autocast;
    results[0] = of.layer(inputs[0]);
    results[1] = of.plain(inputs[1]);
  }
  of.write_parameters();
  for (const Tensor& y : results) y.to(torch::kFloat).square().sum().backward();
  CHECK(are_close(inputs[0].grad(), inputs[1].grad()));
  CHECK(are_close(of.layer->weight.grad(), of.plain->weight.grad()));
}

TEST_CASE("fully_shard: a cast keeps its values when the parameter is written to, and set_data() gives it others") {
  LayerOfGroup of;
  const Tensor wide = of.x.to(torch::kBFloat16), plain_wide = of.input.to(torch::kBFloat16);
  Tensor cast = of.layer->weight.detach().to(torch::kBFloat16), plain = of.plain->weight.detach().to(torch::kBFloat16);
  CHECK(torch::equal(full(torch::mm(wide, cast.t())), torch::mm(plain_wide, plain.t())));
  of.write_parameters();
  CHECK(torch::equal(full(torch::mm(wide, cast.t())), torch::mm(plain_wide, plain.t())));
  cast = of.layer->weight.detach().to(torch::kBFloat16);
  plain = of.plain->weight.detach().to(torch::kBFloat16);
  cast.set_data(cast + 2);
  plain.set_data(plain + 2);
  CHECK(torch::equal(full(torch::mm(wide, cast.t())), torch::mm(plain_wide, plain.t())));
}

TEST_CASE("fully_shard: under autocast, which leaves float64 as it is, a product with a float64 parameter is float64") {
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  torch::nn::Linear layer(torch::nn::LinearOptions(3, 3).bias(false));
  layer->to(torch::kDouble);
  fully_shard(*layer, mesh, {.mixed_precision = {.param_dtype = torch::kFloat}});
  const Tensor x = ones({4, 3}, mesh, {Shard(0)}, {.dtype = torch::kDouble});
  CHECK(torch::mm(x, layer->weight).scalar_type() == torch::kFloat);
  const testing::Autocast autocast;
  CHECK(torch::mm(x, layer->weight).scalar_type() == torch::kDouble);
}

TEST_CASE("fully_shard: a cast that the program writes to, and views of casts, have their own values") {
  LayerOfGroup of;
  const Tensor wide = of.x.to(torch::kBFloat16), plain_wide = of.input.to(torch::kBFloat16);
  const auto products = [](const Tensor& weight, const Tensor& in) {
    Tensor cast = weight.to(torch::kBFloat16);
    std::vector<Tensor> results{torch::mm(in, cast.t()), torch::mm(in, weight.t().to(torch::kBFloat16)),
                                torch::mm(in.narrow(1, 0, 3), cast.narrow(1, 1, 3).t())};
    const torch::NoGradGuard no_grad;
    cast.mul_(2);
    results.push_back(torch::mm(in, cast.t()));
    return results;
  };
  CommDebugMode comm;
  const auto results = products(of.layer->weight, wide), expected = products(of.plain->weight, plain_wide);
  CHECK(comm.total() == 2);  // of the group, and of the cast that was written to
  for (size_t i = 0; i < results.size(); ++i) {
    INFO("product " << i);
    CHECK(torch::equal(full(results[i]), expected[i]));
  }
}

TEST_CASE("fully_shard: evaluation in bfloat16 gathers each group once, and reshard() frees it") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  const MemoryMeter& memory = mesh.world().memory();
  Stack model = make_stack(torch::kFloat);
  shard_blocks(model, mesh, {.mixed_precision = kBFloat16Parameters});
  const Tensor batch = distribute_tensor(token_ids(), mesh, {Shard(0)});
  const int64_t before = memory.live_bytes();
  for (const bool is_autocast : {false, true}) {
    for (const bool inference : {false, true}) {
      CAPTURE(is_autocast, inference);
      const c10::InferenceMode inference_mode(inference);
      const torch::NoGradGuard no_grad;
      CommDebugMode comm;
      {
        const auto autocast = is_autocast ? std::make_unique<testing::Autocast>() : nullptr;
        model->forward(batch);
      }
      CHECK(comm.total() == kBlocks + 1);
      CHECK(memory.live_bytes() > before);
      reshard(*model);
      CHECK(memory.live_bytes() == before);
    }
  }
}

TEST_CASE("fully_shard: a step in bfloat16 holds gathered parameters in half the bytes, and gradients in float32") {
  const World ranks = World::local(4);
  const DeviceMesh mesh(ranks, {4}, {"dp"});
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) model->push_back(torch::nn::Linear(torch::nn::LinearOptions(128, 128).bias(false)));
  for (const auto& layer : *model) fully_shard(*layer.ptr(), mesh, {.mixed_precision = kBFloat16Parameters});
  const Tensor x = ones({4, 128}, mesh, {Shard(0)});
  const int64_t group = 128 * 128 * 4, parts = 8 * group / 4;
  ranks.memory().reset_peak();
  model->forward(x).sum().backward();
  // Parameters and gradients; a gathered group and its gradient. Backward frees the casts that autograd has saved.
  const auto formula = static_cast<double>(parts + parts + group / 2 + group);
  const auto peak = static_cast<double>(ranks.memory().peak_bytes());
  CAPTURE(peak, formula);
  CHECK(peak < 1.05 * formula);
  CHECK(peak > 0.95 * formula);
}

TEST_CASE("fully_shard: blocks in bfloat16 inside checkpoint() have the gradients that they have without it") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  for (const bool is_autocast : {false, true}) {
    CAPTURE(is_autocast);
    Stack models[] = {make_stack(torch::kFloat), make_stack(torch::kFloat)};
    for (const bool is_checkpoint : {false, true}) {
      Stack& model = models[is_checkpoint ? 1 : 0];
      shard_blocks(model, mesh, {.mixed_precision = kBFloat16Parameters});
      CommDebugMode comm;
      Tensor loss;
      {
        const auto autocast = is_autocast ? std::make_unique<testing::Autocast>() : nullptr;
        Tensor x = model->table(distribute_tensor(token_ids(), mesh, {Shard(0)}));
        for (const auto& block : *model->blocks) {
          const auto run = [block](const Tensor& in) { return block->as<Residual>()->forward(in); };
          x = is_checkpoint ? checkpoint(run, x) : run(x);
        }
        loss = model->head(x).to(torch::kFloat).square().sum();
      }
      loss.backward();
      CHECK(comm.counts().at("reduce_scatter") == kBlocks + 1);
      CHECK(comm.counts().at("all_gather") == 2 * kBlocks);
    }
    for (size_t i = 0; i < models[0]->parameters().size(); ++i) {
      CHECK(torch::equal(full(models[0]->parameters()[i].grad()), full(models[1]->parameters()[i].grad())));
    }
  }
}

TEST_CASE("fully_shard: slices of a parameter's sharded dim are computed with in bfloat16, too") {
  LayerOfGroup of;
  const auto halves = [](const torch::nn::Linear& layer, const Tensor& in) {
    const Tensor first = torch::linear(in, layer->weight.slice(0, 0, 4), layer->bias.slice(0, 0, 4));
    return torch::cat({first, torch::linear(in, layer->weight.slice(0, 4, 6), layer->bias.slice(0, 4, 6))}, 1);
  };
  const Tensor result = halves(of.layer, of.x.to(torch::kBFloat16)), expected = halves(of.plain, of.input);
  CHECK(result.scalar_type() == torch::kBFloat16);
  CHECK(are_close(result, expected));
  result.to(torch::kFloat).square().sum().backward();
  expected.square().sum().backward();
  CHECK(are_close(of.layer->weight.grad(), of.plain->weight.grad()));
}

TEST_CASE("fully_shard: batch norm with bfloat16 parameters updates its float32 statistics") {
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  const auto make = [] {
    torch::manual_seed(1);
    return torch::nn::Sequential(torch::nn::Conv2d(2, 3, 3), torch::nn::BatchNorm2d(3));
  };
  auto model = make(), plain = make();
  fully_shard(*model, mesh, {.mixed_precision = kBFloat16Parameters});
  const Tensor x = torch::arange(400, torch::kFloat).view({4, 2, 5, 10}).sin();
  CHECK(are_close(model->forward(distribute_tensor(x, mesh, {Shard(0)})), plain->forward(x)));
  const auto *norm = model[1]->as<torch::nn::BatchNorm2d>(), *expected = plain[1]->as<torch::nn::BatchNorm2d>();
  CHECK(norm->running_mean.scalar_type() == torch::kFloat);
  CHECK(are_close(norm->running_mean, expected->running_mean));
  CHECK(are_close(norm->running_var, expected->running_var));
}

TEST_CASE("fully_shard: Module::to(bfloat16) keeps groups whose param_dtype is bfloat16") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  Stack model = make_stack(torch::kFloat);
  shard_blocks(model, mesh, {.mixed_precision = kBFloat16Parameters});
  model->to(torch::kBFloat16);
  CommDebugMode comm;
  model->forward(distribute_tensor(token_ids(), mesh, {Shard(0)})).sum().backward();
  CHECK(comm.counts().at("all_gather") == 2 * kBlocks);
  CHECK(comm.counts().at("reduce_scatter") == kBlocks + 1);
  CHECK(model->head->weight.grad().scalar_type() == torch::kBFloat16);
}

TEST_CASE("fully_shard: a step in bfloat16 on 64 ranks without data has the collectives of a step with data") {
  const DeviceMesh mesh(World::abstract(64), {64}, {"dp"});
  Stack model = make_stack(torch::kFloat);
  shard_blocks(model, mesh, {.mixed_precision = kBFloat16Parameters});
  CommDebugMode comm;
  model->forward(zeros({64, 3}, mesh, {Shard(0)}, {.dtype = torch::kLong})).sum().backward();
  CHECK(comm.counts().at("all_gather") == 2 * kBlocks);
  CHECK(comm.counts().at("reduce_scatter") == kBlocks + 1);
}

TEST_CASE("fully_shard: a param_dtype or reduce_dtype of integers is refused, and the module stays as it was") {
  using Catch::Contains;
  using testing::error_text;
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  Stack model = make_stack(torch::kFloat);
  CHECK_THAT(error_text([&] { fully_shard(*model, mesh, {.mixed_precision = {.param_dtype = torch::kInt}}); }),
             Contains("[fully_shard] mixed_precision.param_dtype is Int") && Contains("BFloat16"));
  CHECK_THAT(error_text([&] { fully_shard(*model, mesh, {.mixed_precision = {.reduce_dtype = torch::kBool}}); }),
             Contains("mixed_precision.reduce_dtype is Bool"));
  CHECK(!is_dtensor(model->head->weight));
}

}  // namespace dtensor
