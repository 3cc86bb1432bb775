// Training over processes gives what the same ranks in one process give, bit for bit.
#include <torch/nn.h>
#include <torch/optim.h>

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/activation_checkpoint.h"
#include "dtensor/dtensor.h"
#include "dtensor/pipeline.h"
#include "dtensor/zero_redundancy_optimizer.h"
#include "tests/processes/job_world.h"
#include "tests/processes/rank_flag.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

torch::nn::Sequential make_layers() {
  torch::manual_seed(4);
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8), torch::nn::Tanh(),
                              torch::nn::Linear(8, 4));
  model->to(torch::kDouble);
  return model;
}

Tensor batch(int64_t i) { return torch::arange(24 * i, 24 * (i + 1), torch::kDouble).view({4, 6}).sin(); }

// The values of tensors on ranks that this process owns; others are undefined.
Tensor own_value(const Tensor& t) { return DTensor(t).mesh().local_ranks().empty() ? Tensor() : full_tensor(t); }

struct Run {
  Tensors losses, parameters;
};

void check_same(const Run& job, const Run& twin) {
  const auto check = [](const Tensors& of_job, const Tensors& of_twin) {
    REQUIRE(of_job.size() == of_twin.size());
    for (size_t i = 0; i < of_job.size(); ++i) {
      INFO("tensor " << i);
      if (of_job[i].defined()) CHECK(torch::equal(of_job[i], of_twin[i]));
    }
  };
  check(job.losses, twin.losses);
  check(job.parameters, twin.parameters);
}

Run run_pipeline(const World& world, const PipelineSchedule& schedule, const std::vector<int64_t>& first_modules,
                 bool fully_sharded = false) {
  const DeviceMesh mesh(world, {2, 2}, {"pp", "dp"});
  const auto meshes = pipeline_meshes(mesh, "pp");
  torch::nn::Sequential model = make_layers();
  const auto stages = pipeline_stages(*model, first_modules, meshes);
  for (const size_t layer : {0, 2, 4}) {
    const size_t stage = static_cast<int64_t>(layer) < first_modules[1] ? 0 : 1;
    if (fully_sharded) fully_shard(*model->ptr(layer), meshes[stage], {.mesh_dim = "dp"});
  }
  Pipeline pipeline(stages, schedule);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Run run;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    Tensors inputs;
    for (int64_t i = 0; i < schedule.num_micro_batches; ++i)
      inputs.push_back(distribute_tensor(batch(i), meshes.front(), {Shard(0)}));
    for (const Tensor& loss : pipeline.step(inputs, [](const Tensor&y, int64_t) { return y.pow(2).mean(); })) {
      // Both stages get the value.
      run.losses.push_back(own_value(loss));
      run.losses.push_back(own_value(redistribute(loss, meshes.front(), {Replicate()})));
    }
    optimizer.step();
  }
  for (const Tensor& p : model->parameters()) run.parameters.push_back(own_value(p));
  return run;
}

TEST_CASE("a pipeline of two stages over four processes has the losses and parameters of one process",
          "[processes][pipeline]") {
  check_same(run_pipeline(job_world(), gpipe_schedule(2, 4), {0, 2}),
             run_pipeline(twin_world(), gpipe_schedule(2, 4), {0, 2}));
  check_same(run_pipeline(job_world(), one_f_one_b_schedule(2, 4), {0, 2}),
             run_pipeline(twin_world(), one_f_one_b_schedule(2, 4), {0, 2}));
  check_same(run_pipeline(job_world(), zero_bubble_schedule(2, 4), {0, 2}),
             run_pipeline(twin_world(), zero_bubble_schedule(2, 4), {0, 2}));
}

TEST_CASE("a pipeline of fully sharded stages over four processes has the losses and parameters of one process",
          "[processes][pipeline]") {
  for (const auto& schedule : {one_f_one_b_schedule(2, 4), zero_bubble_schedule(2, 4)}) {
    check_same(run_pipeline(job_world(), schedule, {0, 2}, /*fully_sharded=*/true),
               run_pipeline(twin_world(), schedule, {0, 2}, /*fully_sharded=*/true));
  }
}

TEST_CASE("an interleaved pipeline of four stages over four processes has the losses of one process",
          "[processes][pipeline]") {
  const auto schedule = interleaved_schedule(2, 2, 4);
  check_same(run_pipeline(job_world(), schedule, {0, 1, 2, 4}), run_pipeline(twin_world(), schedule, {0, 1, 2, 4}));
}

TEST_CASE("a pipeline rank computes a micro-batch while the stage before still computes the next one",
          "[processes][pipeline]") {
  const DeviceMesh mesh(job_world(), {2, 2}, {"pp", "dp"});
  const auto meshes = pipeline_meshes(mesh, "pp");
  RankFlag done_2("micro-batch 0 on rank 2"), done_3("micro-batch 0 on rank 3");
  int first_calls = 0, second_calls = 0;
  bool waited_in_vain = false;
  const auto first = [&](const Tensor& x) {
    // The second micro-batch takes until the second stage has computed the first one.
    if (++first_calls == 2 && !meshes[0].local_ranks().empty()) {
      const std::chrono::seconds most(10);
      waited_in_vain = !done_2.wait(most) || !done_3.wait(most);
    }
    return x * 2;
  };
  const auto second = [&](const Tensor& x) {
    const Tensor y = x * 3;
    if (++second_calls == 1 && !meshes[1].local_ranks().empty()) {
      fetch_parts(y);
      (meshes[1].local_ranks()[0] == 2 ? done_2 : done_3).raise();
    }
    return y;
  };
  Pipeline pipeline({{meshes[0], first, {}, {}}, {meshes[1], second, {}, {}}}, gpipe_schedule(2, 2));
  const Tensors inputs = {distribute_tensor(batch(0), meshes[0], {Shard(0)}).requires_grad_(),
                          distribute_tensor(batch(1), meshes[0], {Shard(0)}).requires_grad_()};
  pipeline.step(inputs, [](const Tensor& y, int64_t) { return y.sum(); });
  CHECK(!waited_in_vain);
  for (const Tensor& x : inputs) {
    for (const Tensor& part : to_local(x.grad())) CHECK(torch::equal(part, torch::full_like(part, 3)));
  }
}

TEST_CASE("an infinite gradient in the first stage of a pipeline skips the step in the processes of both stages",
          "[processes][pipeline]") {
  const DeviceMesh mesh(job_world(), {2, 2}, {"pp", "dp"});
  const auto meshes = pipeline_meshes(mesh, "pp");
  torch::nn::Sequential model = make_layers();
  Pipeline pipeline(pipeline_stages(*model, {0, 2}, meshes), gpipe_schedule(2, 1));
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  GradScaler scaler({.init_scale = 8});
  const Tensor x = distribute_tensor(batch(0), meshes.front(), {Shard(0)});
  pipeline.step({x}, [&](const Tensor& y, int64_t) { return scaler.scale(y.pow(2).mean()); });
  const Tensor gradient = model->parameters()[0].grad();
  {
    torch::NoGradGuard no_grad;
    gradient.mul_(std::numeric_limits<double>::infinity());
  }
  CHECK(!scaler.step(optimizer));
  scaler.update();
  CHECK(scaler.get_scale() == 4);
}

Run run_with_sharded_states(const World& world, bool delayed) {
  const DeviceMesh mesh(world, {4}, {"dp"});
  torch::nn::Sequential model = make_layers();
  distribute_module(*model, mesh);
  ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer({}, model->parameters(), 1e-2);
  Run run;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = model->forward(distribute_tensor(batch(step), mesh, {Shard(0)})).pow(2).mean();
    if (delayed) {
      const DelayGradientReduction delay;
      loss.backward();
    } else {
      loss.backward();
    }
    run.losses.push_back(own_value(loss));
    optimizer.step();
  }
  for (const Tensor& p : model->parameters()) run.parameters.push_back(own_value(p));
  return run;
}

TEST_CASE("an optimizer with states sharded over four processes has the losses and parameters of one process",
          "[processes][optimizer]") {
  for (const bool delayed : {false, true}) {
    check_same(run_with_sharded_states(job_world(), delayed), run_with_sharded_states(twin_world(), delayed));
  }
}

Run run_checkpointed(const World& world, bool checkpointed) {
  const DeviceMesh mesh(world, {2, 2}, {"dp", "tp"});
  torch::nn::Sequential model = make_layers();
  distribute_module(*model, mesh, [](const std::string& name, torch::nn::Module& m, const DeviceMesh& on) {
    if (name == "0") shard_parameter(m, "weight", on, {Replicate(), Shard(0)});
    if (name == "2") shard_parameter(m, "weight", on, {Replicate(), Shard(1)});
  });
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Run run;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    torch::manual_seed(step);
    const auto forward = [&](const Tensor& x) { return torch::dropout(model->forward(x), 0.2, /*train=*/true); };
    const Tensor x = distribute_tensor(batch(step), mesh, {Shard(0), Replicate()});
    const Tensor loss = (checkpointed ? checkpoint(forward, x) : forward(x)).pow(2).mean();
    run.losses.push_back(own_value(loss));
    loss.backward();
    optimizer.step();
  }
  for (const Tensor& p : model->parameters()) run.parameters.push_back(own_value(p));
  return run;
}

TEST_CASE("a checkpointed model over four processes trains as without checkpoints and as in one process",
          "[processes][checkpoint]") {
  const Run job = run_checkpointed(job_world(), true);
  check_same(job, run_checkpointed(job_world(), false));
  check_same(job, run_checkpointed(twin_world(), true));
}

// Results, and gradients of query, key and value, over a sequence of a length that does not divide evenly.
Run run_attention(const DeviceMesh& mesh, const Placements& placements, const ContextParallelOptions& options,
                  int64_t length) {
  Run run;
  Tensors inputs;
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor whole = torch::arange(2 * 4 * length * 3, torch::kDouble).add(i).sin().view({2, 4, length, 3});
    const Tensor ordered = options.load_balance ? to_head_tail(whole, 2, mesh.size("cp")) : whole;
    inputs.push_back(distribute_tensor(ordered, mesh, placements).requires_grad_());
  }
  const ContextParallel scope("cp", options);
  const Tensor out = torch::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], {}, 0., /*is_causal=*/true);
  out.pow(2).sum().backward();
  run.losses.push_back(own_value(out.detach()));
  for (const Tensor& t : inputs) run.parameters.push_back(own_value(t.grad()));
  return run;
}

TEST_CASE("attention over a sharded sequence over four processes is that of one process",
          "[processes][context_parallel]") {
  for (const auto method : {ContextParallelMethod::kRing, ContextParallelMethod::kAllToAll}) {
    for (const bool load_balance : {false, true}) {
      CAPTURE(static_cast<int>(method), load_balance);
      for (const int64_t length : {11, 5}) {  // of 5, the last rank has none
        const auto run = [&](const World& world) {
          return run_attention(DeviceMesh(world, {4}, {"cp"}), {Shard(2)}, {method, load_balance}, length);
        };
        check_same(run(job_world()), run(twin_world()));
      }
      const auto run_with_heads = [&](const World& world) {
        return run_attention(DeviceMesh(world, {2, 2}, {"cp", "tp"}), {Shard(2), Shard(1)}, {method, load_balance}, 11);
      };
      check_same(run_with_heads(job_world()), run_with_heads(twin_world()));
    }
  }
}

}  // namespace
}  // namespace dtensor
