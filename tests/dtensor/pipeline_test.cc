// A pipeline step: the losses and gradients of one device, in each schedule, with tensor and data parallelism inside.
#include "dtensor/pipeline.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

torch::nn::Sequential make_layers() {
  torch::manual_seed(4);
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8), torch::nn::Tanh(),
                              torch::nn::Linear(8, 8), torch::nn::Tanh(), torch::nn::Linear(8, 4));
  model->to(torch::kDouble);
  return model;
}

Tensor micro_batch(int64_t i) { return torch::arange(24 * i, 24 * (i + 1), torch::kDouble).view({4, 6}).sin(); }
Tensor label(int64_t i) { return torch::arange(16 * i, 16 * (i + 1), torch::kDouble).view({4, 4}).cos(); }
Tensor squared_error(const Tensor& y, const Tensor& wanted) { return (y - wanted).pow(2).mean(); }

// Linear layers of even numbers by rows over tp.
void shard_layers(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh) {
  if (name == "2") shard_parameter(module, "weight", mesh, {Replicate(), Shard(0)});
  if (name == "4") shard_parameter(module, "weight", mesh, {Replicate(), Shard(1)});
}

struct Losses {
  std::vector<double> values;
  void add(const Tensor& loss) { values.push_back((is_dtensor(loss) ? full_tensor(loss) : loss).item<double>()); }
};

// Losses of three steps on one device.
Losses plain_losses(torch::nn::Sequential& model, int64_t micro_batches) {
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  Losses losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    Tensor sum = torch::zeros({}, torch::kDouble);
    for (int64_t i = 0; i < micro_batches; ++i) {
      const Tensor loss = squared_error(model->forward(micro_batch(i)), label(i));
      losses.add(loss);
      sum = sum + loss;
    }
    (sum / static_cast<double>(micro_batches)).backward();
    optimizer.step();
  }
  return losses;
}

struct Piped {
  World world = World::local(8);
  DeviceMesh mesh{world, {2, 2, 2}, {"pp", "dp", "tp"}};
  std::vector<DeviceMesh> meshes = pipeline_meshes(mesh, "pp");
  torch::nn::Sequential model = make_layers();

  Tensors inputs(int64_t n) const {
    Tensors result;
    for (int64_t i = 0; i < n; ++i) {
      result.push_back(distribute_tensor(micro_batch(i), meshes.front(), {Shard(0), Replicate()}));
    }
    return result;
  }
  Losses losses(Pipeline& pipeline) {
    const int64_t n = pipeline.schedule().num_micro_batches;
    torch::optim::AdamW optimizer(model->parameters(), 1e-2);
    Losses losses;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const auto loss = [&](const Tensor& y, int64_t i) {
        return squared_error(y, distribute_tensor(label(i), meshes.back(), {Shard(0), Replicate()}));
      };
      for (const Tensor& value : pipeline.step(inputs(n), loss)) losses.add(value);
      optimizer.step();
    }
    return losses;
  }
};

// Shards the parameters of each layer over the "dp" of its stage.
void shard_fully(torch::nn::Sequential& model, const std::vector<int64_t>& first_modules,
                 const std::vector<DeviceMesh>& meshes) {
  for (size_t i = 0; i < model->size(); i += 2) {
    size_t stage = 0;
    while (stage + 1 < first_modules.size() && first_modules[stage + 1] <= static_cast<int64_t>(i)) ++stage;
    fully_shard(*model->ptr(i), meshes[stage % meshes.size()], {.mesh_dim = "dp"});
  }
}

struct PipelineCase {
  PipelineSchedule schedule;
  std::vector<int64_t> first_modules;
};

std::vector<PipelineCase> pipeline_cases() {
  return {{gpipe_schedule(2, 4), {0, 4}},
          {one_f_one_b_schedule(2, 4), {0, 3}},
          {interleaved_schedule(2, 2, 4), {0, 2, 4, 6}},
          {zero_bubble_schedule(2, 4), {0, 4}},
          {zero_bubble_schedule(2, 4), {0, 3}}};
}

void check_losses_of_one_device(const PipelineCase& c, bool fully_sharded) {
  INFO(c.schedule.name << (fully_sharded ? ", fully sharded" : ""));
  torch::nn::Sequential plain = make_layers();
  const Losses expected = plain_losses(plain, 4);
  Piped piped;
  const auto stages = pipeline_stages(*piped.model, c.first_modules, piped.meshes, shard_layers);
  if (fully_sharded) shard_fully(piped.model, c.first_modules, piped.meshes);
  Pipeline pipeline(stages, c.schedule);
  const Losses actual = piped.losses(pipeline);
  REQUIRE(actual.values.size() == expected.values.size());
  for (size_t i = 0; i < expected.values.size(); ++i)
    CHECK(actual.values[i] == Approx(expected.values[i]).epsilon(1e-9));
  for (const auto& p : plain->named_parameters()) {
    INFO(p.key());
    CHECK(torch::allclose(full_tensor(piped.model->named_parameters()[p.key()]), p.value(), 1e-8, 1e-10));
  }
}

TEST_CASE("a 3-D step of pipeline, data and tensor parallelism has the losses of one device in each schedule") {
  for (const PipelineCase& c : pipeline_cases()) check_losses_of_one_device(c, false);
}

TEST_CASE(
    "a 3-D step of pipeline, fully sharded and tensor parallelism has the losses of one device in each schedule") {
  for (const PipelineCase& c : pipeline_cases()) check_losses_of_one_device(c, true);
}

TEST_CASE(
    "a pipeline step reduces the gradients of each fully sharded stage once, whatever the number of micro-batches") {
  for (const int64_t n : {2, 6}) {
    INFO(n << " micro-batches");
    Piped piped;
    const auto stages = pipeline_stages(*piped.model, {0, 3}, piped.meshes);
    shard_fully(piped.model, {0, 3}, piped.meshes);
    Pipeline pipeline(stages, one_f_one_b_schedule(2, n));
    CommDebugMode comm;
    pipeline.step(piped.inputs(n), [&](const Tensor& y, int64_t) { return y.pow(2).mean(); });
    INFO(comm.to_string());
    int64_t reductions = 0;
    for (const CommRow& row : comm.rows()) {
      if (row.op == "reduce_gradients") reductions += row.count;
    }
    CHECK(reductions == 2);
  }
}

TEST_CASE("a pipeline step reduces each stage's gradients over dp once, whatever the number of micro-batches") {
  for (const auto& schedule : {one_f_one_b_schedule(2, 2), one_f_one_b_schedule(2, 6), zero_bubble_schedule(2, 6)}) {
    INFO(schedule.name);
    const int64_t n = schedule.num_micro_batches;
    Piped piped;
    Pipeline pipeline(pipeline_stages(*piped.model, {0, 3}, piped.meshes), schedule);
    CommDebugMode comm;
    pipeline.step(piped.inputs(n), [&](const Tensor& y, int64_t) { return y.pow(2).mean(); });
    int64_t reductions = 0;
    for (const CommRow& row : comm.rows()) {
      if (row.op == "reduce_gradients") reductions += row.count;
    }
    CHECK(reductions == 2);
  }
}

TEST_CASE("activations and gradients between two stages are one transfer each for a micro-batch") {
  Piped piped;
  Pipeline pipeline(pipeline_stages(*piped.model, {0, 3}, piped.meshes), gpipe_schedule(2, 3));
  const Tensors inputs = piped.inputs(3);
  CommDebugMode comm;
  pipeline.step(inputs, [&](const Tensor& y, int64_t) { return y.pow(2).mean(); });
  int64_t transfers = 0;
  for (const CommRow& row : comm.rows()) {
    if (row.op == "redistribute") transfers += row.count;
  }
  CHECK(transfers == 6);
}

TEST_CASE("a step of four stages in ZB-H1 has the gradients of one device, also with frozen parameters") {
  for (const size_t frozen : {6, 0, 4, 2}) {  // the first parameters, which need no gradient; 6: those of three layers
    INFO("the first " << frozen << " parameters are frozen");
    const auto freeze = [&](torch::nn::Sequential& model) {
      for (size_t i = 0; i < frozen; ++i) model->parameters()[i].set_requires_grad(false);
    };
    torch::nn::Sequential plain = make_layers();
    freeze(plain);
    for (int64_t i = 0; i < 5; ++i) (squared_error(plain->forward(micro_batch(i)), label(i)) / 5).backward();
    const DeviceMesh mesh(World::local(8), {4, 2}, {"pp", "dp"});
    const auto meshes = pipeline_meshes(mesh, "pp");
    torch::nn::Sequential model = make_layers();
    Pipeline pipeline(pipeline_stages(*model, {0, 2, 4, 6}, meshes), zero_bubble_schedule(4, 5));
    freeze(model);
    Tensors inputs;
    for (int64_t i = 0; i < 5; ++i) inputs.push_back(distribute_tensor(micro_batch(i), meshes.front(), {Shard(0)}));
    pipeline.step(inputs, [&](const Tensor& y, int64_t i) {
      return squared_error(y, distribute_tensor(label(i), meshes.back(), {Shard(0)}));
    });
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      INFO("parameter " << i);
      const Tensor actual = model->parameters()[i].grad(), expected = plain->parameters()[i].grad();
      REQUIRE(actual.defined() == expected.defined());
      if (expected.defined()) CHECK(torch::allclose(full_tensor(actual), expected, 1e-10, 1e-12));
    }
  }
}

TEST_CASE("forward of a pipeline returns the outputs of one device") {
  torch::nn::Sequential plain = make_layers();
  Piped piped;
  Pipeline pipeline(pipeline_stages(*piped.model, {0, 4}, piped.meshes, shard_layers), gpipe_schedule(2, 1));
  const Tensors outputs = pipeline.forward(piped.inputs(3));
  REQUIRE(outputs.size() == 3);
  for (int64_t i = 0; i < 3; ++i) {
    CHECK(torch::allclose(full_tensor(outputs[i]), plain->forward(micro_batch(i))));
    CHECK(!outputs[i].requires_grad());
  }
}

TEST_CASE("a pipeline over stages with meshes of different dims takes the layouts of input_placements") {
  const World world = World::local(3);
  const DeviceMesh one(world, {1}, {"tp"}, {0}), two(world, {2, 1}, {"dp", "tp"}, {1, 2});
  const auto weight = [](const DeviceMesh& mesh) {
    return distribute_tensor(torch::eye(4, torch::kDouble) * 2, mesh).requires_grad_();
  };
  const Tensor first = weight(one), second = weight(two);
  std::vector<PipelineStage> stages = {{one, [&](const Tensor& x) { return x.mm(first); }, {first}, {}},
                                       {two, [&](const Tensor& x) { return x.mm(second); }, {second}, {}}};
  const Tensor x = distribute_tensor(torch::ones({4, 4}, torch::kDouble), one);
  CHECK_THROWS_WITH(Pipeline(stages, gpipe_schedule(2, 1)).forward({x}),
                    Catch::Contains("give the stage input_placements"));
  stages[1].input_placements = {Shard(0), Replicate()};
  Pipeline pipeline(stages, gpipe_schedule(2, 1));
  CHECK(DTensor(pipeline.forward({x})[0]).placements() == Placements{Shard(0), Replicate()});
  pipeline.step({x}, [](const Tensor& y, int64_t) { return y.sum(); });
  CHECK(torch::equal(full_tensor(first.grad()), torch::full({4, 4}, 8, torch::kDouble)));
  CHECK(torch::equal(full_tensor(second.grad()), torch::full({4, 4}, 8, torch::kDouble)));
}

TEST_CASE("a pipeline step on 64 abstract ranks records its communication") {
  const World world = World::abstract(64);
  const DeviceMesh mesh(world, {4, 4, 4}, {"pp", "dp", "tp"});
  const auto meshes = pipeline_meshes(mesh, "pp");
  torch::nn::Sequential model = make_layers();
  Pipeline pipeline(pipeline_stages(*model, {0, 2, 4, 6}, meshes), one_f_one_b_schedule(4, 8));
  Tensors inputs;
  for (int i = 0; i < 8; ++i)
    inputs.push_back(zeros({16, 6}, meshes[0], {Shard(0), Replicate()}, {.dtype = torch::kDouble}));
  CommDebugMode comm;
  pipeline.step(inputs, [&](const Tensor& y, int64_t) { return y.pow(2).mean(); });
  int64_t transfers = 0;
  for (const CommRow& row : comm.rows()) {
    if (row.op == "redistribute") transfers += row.count;
  }
  CHECK(transfers == 2 * 3 * 8);
}

TEST_CASE("stages, inputs and losses that do not fit the schedule or the meshes are errors that name the stage") {
  Piped piped;
  const auto stages = pipeline_stages(*piped.model, {0, 3}, piped.meshes);
  CHECK_THROWS_WITH(Pipeline(stages, gpipe_schedule(3, 2)),
                    Catch::Contains("2 stages, and the schedule GPipe is for 3"));
  auto swapped = pipeline_stages(*make_layers(), {0, 2, 4, 6}, piped.meshes);
  std::swap(swapped[2].mesh, swapped[3].mesh);
  CHECK_THROWS_WITH(Pipeline(swapped, interleaved_schedule(2, 2, 2)),
                    Catch::Contains("stages 0 and 2 are on one pipeline rank"));
  Pipeline pipeline(stages, gpipe_schedule(2, 2));
  const auto loss = [](const Tensor& y, int64_t) { return y.sum(); };
  CHECK_THROWS_WITH(pipeline.step(piped.inputs(1), loss), Catch::Contains("1 inputs, and the schedule has 2"));
  CHECK_THROWS_WITH(pipeline.step({micro_batch(0), micro_batch(1)}, loss),
                    Catch::Contains("the input of stage 0 is a plain tensor"));
  const auto plain_loss = [](const Tensor& y, int64_t) { return full_tensor(y).sum(); };
  CHECK_THROWS_WITH(pipeline.step(piped.inputs(2), plain_loss),
                    Catch::Contains("the loss of stage 1 is a plain tensor"));
  CHECK_THROWS_WITH(pipeline.step(piped.inputs(2), [](const Tensor& y, int64_t) { return y; }),
                    Catch::Contains("the loss of micro-batch 0 has the shape [4, 4]"));
  CHECK_THROWS_WITH(pipeline_stages(*piped.model, {0, 5}, piped.meshes),
                    Catch::Contains("Two stages cannot share a weight"));
  CHECK_THROWS_WITH(pipeline_stages(*piped.model, {0, 3, 3}, piped.meshes),
                    Catch::Contains("first_modules is [0, 3, 3]"));
  CHECK_THROWS_WITH(pipeline_stages(*piped.model, {0, 7}, piped.meshes), Catch::Contains("number of modules, 7"));
  CHECK_THROWS_WITH(pipeline_meshes(DeviceMesh(World::local(2), {2}, {"pp"}), "pp"),
                    Catch::Contains("give it one of size 1"));
}

}  // namespace
}  // namespace dtensor
