// One rank reads more than the others while models train: groups of parameters, buckets of gradients, steps that fail,
// styles, casts of parameters, optimizers, pipelines.
#include <ATen/autocast_mode.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "dtensor/activation_checkpoint.h"
#include "dtensor/distribute_module.h"
#include "dtensor/fully_shard.h"
#include "dtensor/gradient_buckets.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/pipeline.h"
#include "dtensor/scopes.h"
#include "dtensor/zero_redundancy_optimizer.h"
#include "tests/processes/reads_on_one_rank.h"

namespace dtensor::testing {
namespace {

namespace nn = torch::nn;

nn::Sequential make_model() {
  torch::manual_seed(3);
  nn::Sequential model(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 4));
  model->to(torch::kDouble);
  return model;
}

// Reads a parameter and its gradient.
void read_parameter(const Tensor& p, const Read& read) {
  read(p);
  if (p.grad().defined()) read(p.grad());
}

void read_parameters(const nn::Module& model, const Read& read) {
  for (const Tensor& p : model.parameters()) read_parameter(p, read);
}

// Reads between layers, and in hooks of their results.
std::vector<Tensor> forward(nn::Sequential model, Tensor x, const Read& read) {
  std::vector<Tensor> results;
  const Tensor last = model->ptr(4)->parameters()[0];
  for (nn::AnyModule& layer : *model) {
    x = layer.forward(x);
    read(x);
    const auto parameters = layer.ptr()->parameters();
    if (!parameters.empty()) read(parameters[0]);
    if (x.requires_grad()) {
      x.register_hook([&read, parameters, last](const Tensor& g) {
        read(g);
        if (!parameters.empty()) read_parameter(parameters[0], read);
        read_parameter(last, read);
      });
    }
    results.push_back(x);
  }
  return results;
}

// A hook ends the backward on all ranks, when the gradients of the later layers are there.
void fail_in_backward(const std::vector<Tensor>& results, const Read& read) {
  results[1].register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("a bad batch"); });
  const Tensor loss = results.back().square().sum();
  try {
    loss.backward();
    FAIL("the hook was not called");
  } catch (const std::runtime_error&) {
    read(loss);
    read(results[2]);
  }
}

std::vector<Tensor> results_of(const nn::Module& model, Tensor out) {
  std::vector<Tensor> results{std::move(out)};
  for (const Tensor& p : model.parameters()) {
    results.push_back(p);
    if (p.grad().defined()) results.push_back(p.grad());
  }
  return results;
}

// Two steps, of which the second adds to the gradients of one that fails, and an evaluation.
std::vector<Tensor> train(nn::Sequential model, torch::optim::Optimizer& optimizer, const Tensor& x, const Read& read) {
  for (int step = 0; step < 2; ++step) {
    const Tensor loss = forward(model, x, read).back().square().sum();
    read(loss);
    loss.backward();
    read_parameters(*model, read);
    if (step == 0) {
      fail_in_backward(forward(model, x, read), read);
      read_parameters(*model, read);
    }
    optimizer.step();
    read_parameter(model->ptr(2)->parameters()[0], read);
    optimizer.zero_grad(/*set_to_none=*/step == 0);
  }
  forward(model, x, read).back().square().sum().backward();
  const torch::NoGradGuard no_grad;
  return results_of(*model, forward(model, x, read).back());
}

// ------------------------------------------------------------ groups of parameters

std::vector<Tensor> train_fully_sharded(const DeviceMesh& mesh, const Read& read, const FullyShardOptions& options) {
  nn::Sequential model = make_model();
  for (const size_t i : {0, 2}) fully_shard(*model->ptr(i), mesh, options);
  fully_shard(*model, mesh, options);
  torch::optim::AdamW optimizer(model->parameters(), 0.1);
  auto results = train(model, optimizer, laid_out({8, 6}, 40, mesh, Shard(0)), read);
  reshard(*model);
  read_parameters(*model, read);
  return results;
}

Program fully_sharded(const char* name, const FullyShardOptions& options) {
  return {name, [options](auto& mesh, auto& read) { return train_fully_sharded(mesh, read, options); }};
}

// Casts of parameters that the program takes, of which operators take the gathered copies.
std::vector<Tensor> casts_of_sharded_parameters(const DeviceMesh& mesh, const Read& read) {
  nn::Sequential model = make_model();
  for (const size_t i : {0, 2})
    fully_shard(*model->ptr(i), mesh, {.mixed_precision = {.param_dtype = torch::kFloat}, .prefetch = true});
  const Tensor w = model->ptr(0)->parameters()[0], v = model->ptr(2)->parameters()[0];
  const Tensor x = laid_out({8, 6}, 41, mesh, Shard(0)).to(torch::kFloat);
  Tensor y;
  for (int step = 0; step < 2; ++step) {
    const Tensor cast = w.to(torch::kFloat);
    read(cast);
    y = x.mm(cast.t());
    read(w);
    const Tensor turned = v.to(torch::kFloat).t();
    read(turned);
    y = y.tanh().mm(turned) + x.mm(cast.t());
    y.square().sum().backward();
    read(cast);
    const torch::NoGradGuard no_grad;
    w.sub_(w.grad(), 0.1);
    read(cast);
  }
  return {y, w, v.grad()};
}

// ------------------------------------------------------------ buckets of gradients

std::vector<Tensor> train_in_buckets(const DeviceMesh& mesh, const Read& read, GradientBucketOptions options,
                                     bool in_order) {
  nn::Sequential model = make_model();
  distribute_module(*model, mesh);
  if (in_order) options.order = model->parameters();
  set_gradient_buckets(mesh.world(), options);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto results = train(model, optimizer, laid_out({8, 6}, 42, mesh, Shard(0)), read);
  set_gradient_buckets(mesh.world(), {});
  return results;
}

Program in_buckets(const char* name, const GradientBucketOptions& options, bool in_order) {
  return {name, [=](auto& mesh, auto& read) { return train_in_buckets(mesh, read, options, in_order); }};
}

// Hooks of leaves get gradients in the leaf's layout, which a rank may keep; the program writes to .grad afterwards.
std::vector<Tensor> gradients_that_hooks_read(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({6, 8}, 43, mesh, Shard(1)), table = parameter({12, 4}, 44, mesh, Shard(0));
  const Tensor v = parameter({8, 8}, 45, mesh, Replicate());
  const Tensor x = distribute_tensor(numbers({8, 6}, 46), mesh, {Replicate()});
  const Tensor rows = laid_out({6, 8}, 47, mesh, Shard(0)), eight = laid_out({8, 8}, 48, mesh, Shard(0));
  const Tensor ids = distribute_tensor(torch::arange(8), mesh, {Shard(0)});
  for (const Tensor& t : {w, table, v}) t.register_hook([&](const Tensor& g) { read(g); });
  const Tensor y = x.mm(w);
  y.tanh().square().sum().backward();
  torch::embedding(table, ids).pow(3).sum().backward();
  eight.mm(v).tanh().sum().backward();
  read(w.grad());
  const torch::NoGradGuard no_grad;
  // Two inputs lie otherwise: an operator that may change the layout of what it writes would move that.
  w.mutable_grad().addcmul_(rows, rows);
  table.mutable_grad().addcmul_(laid_out({12, 4}, 49, mesh, Shard(1)), laid_out({12, 4}, 50, mesh, Shard(1)));
  v.mutable_grad().addcmul_(eight, eight);
  read(v.grad());
  return {w.grad(), table.grad(), v.grad(), w.grad().exp()};
}

// Their gradients are slices of that of the whole, which no operator has read.
std::vector<Tensor> gradients_of_joined_parameters(const DeviceMesh& mesh, const Read& read) {
  const Tensor a = parameter({8, 6}, 81, mesh, Shard(0)), b = parameter({12, 6}, 82, mesh, Shard(0));
  for (const Tensor& t : {a, b}) t.register_hook([&](const Tensor& g) { read(g); });
  const Tensor factors = laid_out({20, 6}, 83, mesh, Shard(0));
  (torch::cat({a, b}) * factors).sum().backward();
  read(a.grad());
  read(b.grad());
  a.mutable_grad().mul_(2);
  return {a.grad(), b.grad(), factors};
}

// The hook of a table ends the backward on all ranks after it has got the deferred gradient: before it is accumulated,
// or where the other table's gradient is. Then the program writes to what these gradients are computed from.
std::vector<Tensor> deferred_gradients_of_failed_backwards(const DeviceMesh& mesh, const Read& read) {
  const Tensor first = parameter({12, 4}, 51, mesh, Shard(0)), second = parameter({12, 4}, 52, mesh, Shard(0));
  const Tensor ids = distribute_tensor(torch::arange(8), mesh, {Shard(0)}).clone();
  bool fails = true;
  for (const Tensor& table : {first, second}) table.register_hook([&](const Tensor& g) { read(g); });
  first.register_hook([&](const Tensor&) {
    if (fails) throw std::runtime_error("a bad batch");
  });
  const Tensor third = parameter({12, 4}, 53, mesh, Shard(0));
  third.register_hook([&](const Tensor& g) {
    read(g);
    return torch::ones_like(g);
  });
  const auto loss = [&] {
    return (torch::embedding(first, ids) * torch::embedding(second, ids) + torch::embedding(third, ids)).pow(3).sum();
  };
  CHECK_THROWS(loss().backward());
  CHECK_FALSE(first.grad().defined());  // as before the backward
  CHECK_FALSE(second.grad().defined());
  read(first);
  ids.add_(1);
  read(ids);
  fails = false;
  loss().backward();
  ids.add_(1);
  read(second.grad());
  return {first.grad(), second.grad(), third.grad(), ids};
}

// ------------------------------------------------------------ styles, optimizers, pipelines

std::vector<Tensor> train_with_styles(const DeviceMesh& mesh, const Read& read, const MixedPrecision& precision) {
  nn::Sequential model = make_model();
  parallelize_module(*model, mesh,
                     {{"0", ColwiseParallel()}, {"2", RowwiseParallel({.output = Shard(0)})}, {"4", ColwiseParallel()}},
                     {.mixed_precision = precision});
  torch::optim::Adam optimizer(model->parameters(), 0.1);
  return train(model, optimizer, distribute_tensor(numbers({8, 6}, 52), mesh, {Replicate()}), read);
}

std::vector<Tensor> train_with_checkpoints(const DeviceMesh& mesh, const Read& read) {
  nn::Sequential model = make_model();
  for (const size_t i : {0, 2}) fully_shard(*model->ptr(i), mesh, {.prefetch = true});
  fully_shard(*model, mesh, {.prefetch = true});
  const Tensor x = laid_out({8, 6}, 53, mesh, Shard(0));
  for (int step = 0; step < 2; ++step) {
    const auto layers = [&](const Tensor& t) { return forward(model, t, read).back(); };
    checkpoint(layers, x.detach().requires_grad_()).square().sum().backward();
    read_parameters(*model, read);
  }
  return results_of(*model, x);
}

std::vector<Tensor> train_with_sharded_states(const DeviceMesh& mesh, const Read& read) {
  nn::Sequential model = make_model();
  distribute_module(*model, mesh);
  ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer({.mesh_dim = "dp"}, model->parameters(),
                                                         torch::optim::AdamWOptions(0.1));
  return train(model, optimizer, laid_out({8, 6}, 54, mesh, Shard(0)), read);
}

std::vector<Tensor> train_under_autocast(const DeviceMesh& mesh, const Read& read) {
  nn::Sequential model = make_model();
  model->to(torch::kFloat);
  distribute_module(*model, mesh);
  const Tensor x = laid_out({8, 6}, 55, mesh, Shard(0)).to(torch::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor loss = forward(model, x, read).back().to(torch::kFloat).square().sum();
  read(loss);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  loss.backward();
  read_parameters(*model, read);
  return results_of(*model, loss);
}

std::vector<Tensor> train_in_a_pipeline(const DeviceMesh& mesh, const Read& read, const PipelineSchedule& schedule,
                                        bool sharded) {
  const DeviceMesh both(mesh.world(), {2, mesh.size() / 2}, {"pp", "dp"});
  const auto meshes = pipeline_meshes(both, "pp");
  nn::Sequential model = make_model();
  auto stages = pipeline_stages(*model, /*first_modules=*/{0, 2}, meshes);
  for (const size_t i : {0, 2, 4}) {
    if (sharded) fully_shard(*model->ptr(i), meshes[i == 0 ? 0 : 1], {.mesh_dim = "dp"});
  }
  Pipeline pipeline(std::move(stages), schedule);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<Tensor> losses;
  for (int step = 0; step < 2; ++step) {
    std::vector<Tensor> inputs;
    for (uint64_t i = 0; i < 4; ++i) inputs.push_back(laid_out({8, 6}, 56 + i, meshes.front(), Shard(0)));
    losses = pipeline.step(inputs, [&](const Tensor& y, int64_t) {
      read(y);
      read_parameter(model->ptr(0)->parameters()[0], read);
      return y.square().mean();
    });
    read(losses[2]);
    read_parameters(*model, read);
    optimizer.step();
  }
  for (const Tensor& p : model->parameters()) losses.push_back(redistribute(p.detach(), mesh, {Replicate()}));
  for (int i = 0; i < 4; ++i) losses[i] = redistribute(losses[i], mesh, {Replicate()});
  return losses;
}

std::vector<Program> programs_in_training() {
  const MixedPrecision half{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat};
  return {
      fully_sharded("groups of parameters", {}),
      fully_sharded("groups that are gathered ahead", {.prefetch = true}),
      fully_sharded("groups that are kept", {.reshard_after_forward = false, .mixed_precision = half}),
      fully_sharded("groups in host memory", {.mixed_precision = half, .prefetch = true, .offload = true, .dim = 1}),
      {"casts of sharded parameters", casts_of_sharded_parameters},
      in_buckets("small buckets", {.max_bytes = 600}, false),
      in_buckets("small buckets that travel meanwhile", {.max_bytes = 600, .overlap = true}, false),
      in_buckets("ordered buckets in another dtype", {.max_bytes = 600, .reduce_dtype = torch::kFloat, .overlap = true},
                 true),
      {"gradients that hooks read", gradients_that_hooks_read},
      {"gradients of joined parameters", gradients_of_joined_parameters},
      {"deferred gradients of failed backwards", deferred_gradients_of_failed_backwards},
      {"styles", [](auto& mesh, auto& read) { return train_with_styles(mesh, read, {}); }},
      {"styles in another dtype", [half](auto& mesh, auto& read) { return train_with_styles(mesh, read, half); }},
      {"checkpoints of groups", train_with_checkpoints},
      {"sharded states of an optimizer", train_with_sharded_states},
      {"autocast", train_under_autocast},
      {"a pipeline",
       [](auto& mesh, auto& read) { return train_in_a_pipeline(mesh, read, one_f_one_b_schedule(2, 4), false); }},
      {"a pipeline in two parts of backward, sharded",
       [](auto& mesh, auto& read) { return train_in_a_pipeline(mesh, read, zero_bubble_schedule(2, 4), true); }},
  };
}

TEST_CASE("reads on one rank in training change neither communication nor values", "[processes][reads]") {
  check_reads(programs_in_training());
}

}  // namespace
}  // namespace dtensor::testing
