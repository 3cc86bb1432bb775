// Gradients of one backward are reduced together, without any difference but the number of collectives.
#include "dtensor/gradients/gradient_bucket.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn.h>

#include <atomic>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_contracts.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

torch::nn::Sequential make_bucket_model() {
  torch::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  model->to(torch::kDouble);
  return model;
}

Tensor wave_batch() { return torch::arange(50, torch::kDouble).view({10, 5}).sin(); }
Tensor loss_of(torch::nn::Sequential& model, const Tensor& x) { return model->forward(x).pow(2).mean(); }

// Every parameter's gradient equals that on one device, in the parameter's layout.
void check_gradients(torch::nn::Sequential& model, double times = 1) {
  torch::nn::Sequential plain = make_bucket_model();
  loss_of(plain, wave_batch()).backward();
  const auto expected = plain->parameters();
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    INFO("parameter " << i);
    REQUIRE(parameters[i].grad().defined());
    CHECK(DTensor(parameters[i].grad()).placements() == DTensor(parameters[i]).placements());
    CHECK(at::allclose(full_tensor(parameters[i].grad()), expected[i].grad() * times));
  }
}

struct Step {
  torch::nn::Sequential model = make_bucket_model();
  DeviceMesh mesh{World::local(4), {4}, {"dp"}};
  Tensor x;
  Step() {
    distribute_module(*model, mesh);
    x = distribute_tensor(wave_batch(), mesh, {Shard(0)});
  }
  std::vector<CommEvent> backward() {
    const Tensor loss = loss_of(model, x);
    CommDebugMode comm;
    loss.backward();
    return comm.events();
  }
};

}  // namespace

TEST_CASE("gradient bucket: a data-parallel step reduces all gradients at once and names the module") {
  Step step;
  const auto events = step.backward();
  REQUIRE(events.size() == 1);
  CHECK(events[0].collective == Collective::kAllReduce);
  CHECK(events[0].backward);
  CHECK(events[0].cause.implicit);
  CHECK(events[0].cause.op == "gradient");
  CHECK(events[0].more_tensors == 3);
  CHECK_THAT(events[0].cause.argument, Catch::EndsWith(" and 3 more"));
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: the limit of the world decides how many gradients are reduced together") {
  Step step;
  const World& world = step.mesh.world();
  CHECK(gradient_bucket_bytes(world) == 25 << 20);
  size_t reductions = 0;
  int64_t bytes = 0;
  SECTION("default: all of 528 bytes together") { bytes = kDefaultGradientBucketBytes, reductions = 1; }
  SECTION("200 bytes: both of the last layer (192), then the bias (56) and the weight (280) of the first") {
    bytes = 200, reductions = 3;
  }
  SECTION("0: each of the four by itself") { bytes = 0, reductions = 4; }
  limit_gradient_bucket_bytes(world, bytes);
  CHECK(gradient_bucket_bytes(world) == bytes);
  const auto events = step.backward();
  CHECK(events.size() == reductions);
  int reduced = 0;
  for (const CommEvent& e : events) {
    CHECK(e.collective == Collective::kAllReduce);
    CHECK(e.cause.op == "gradient");
    reduced += 1 + e.more_tensors;
  }
  CHECK(reduced == 4);
  check_gradients(step.model);
  CHECK(gradient_bucket_bytes(World::local(4)) == kDefaultGradientBucketBytes);  // of another world
}

TEST_CASE("gradient bucket: a negative limit is an error and changes nothing") {
  const World world = World::abstract(2);
  limit_gradient_bucket_bytes(world, 1000);
  CHECK_THROWS_WITH(limit_gradient_bucket_bytes(world, -1),
                    Catch::Contains("[limit_gradient_bucket_bytes] -1 bytes: give a limit per rank"));
  CHECK(gradient_bucket_bytes(world) == 1000);
}

TEST_CASE("gradient bucket: on the meshes of a two-dimensional job") {
  torch::nn::Sequential model = make_bucket_model();
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  int number = 0;
  distribute_module(*model, mesh, [&](const std::string&, torch::nn::Module& module, const DeviceMesh& m) {
    for (auto& p : module.named_parameters(/*recurse=*/false)) {
      const int dim = number++ < 2 ? 0 : 1;  // column-parallel, then row-parallel
      const Placement over_tp = p.value().dim() > dim ? Placement(Shard(dim)) : Placement(Replicate());
      shard_parameter(module, p.key(), m, {Replicate(), over_tp});
    }
  });
  const Tensor x = distribute_tensor(wave_batch(), mesh, {Shard(0), Replicate()});
  const Tensor loss = loss_of(model, x);
  CommDebugMode comm;
  loss.backward();
  int gradients = 0;
  for (const CommEvent& e : comm.events()) gradients += e.cause.op == "gradient" ? 1 : 0;
  CHECK(gradients == 1);
  check_gradients(model);
}

TEST_CASE("gradient bucket: hooks change neither the collectives nor the values") {
  Step step;
  const auto parameters = step.model->parameters();
  torch::nn::Sequential plain = make_bucket_model();
  std::function<Tensor(const Tensor&)> hook;
  SECTION("a hook that keeps the Partial gradient") {
    hook = [kept = std::vector<Tensor>()](const Tensor& g) mutable {
      kept.push_back(g);
      if (is_dtensor(g)) CHECK(DTensor(g).placements() == Placements{Partial()});
      return g;
    };
  }
  SECTION("a hook that scales the gradient") {
    hook = [](const Tensor& g) { return g * 2; };
  }
  SECTION("a hook that scales the gradient in place") {
    hook = [](const Tensor& g) {
      const at::AutoGradMode no_grad(false);
      return g.detach().mul_(3);
    };
  }
  SECTION("a hook that clamps the gradient") {
    hook = [](const Tensor& g) { return g.clamp(-0.01, 0.01); };
  }
  SECTION("a hook that clamps the gradient in place") {
    hook = [](const Tensor& g) {
      const at::AutoGradMode no_grad(false);
      return Tensor(g).clamp_(-0.01, 0.01);
    };
  }
  SECTION("a hook that divides the gradient by its norm") {
    hook = [](const Tensor& g) { return g / g.norm(); };
  }
  const Tensor loss = loss_of(step.model, step.x);
  for (const Tensor& p : parameters) p.register_hook(hook);
  for (const Tensor& p : plain->parameters()) p.register_hook(hook);
  for (int times = 0; times < 2; ++times) {
    loss_of(step.model, step.x).backward();
    loss_of(plain, wave_batch()).backward();
    for (size_t i = 0; i < parameters.size(); ++i) {
      CHECK(DTensor(parameters[i].grad()).placements() == Placements{Replicate()});
      CHECK(same(parameters[i].grad(), plain->parameters()[i].grad()));
    }
  }
}

TEST_CASE("gradient bucket: hooks that read a gradient add no collective") {
  Step step;
  std::vector<Tensor> parts;
  step.backward();
  for (const Tensor& p : step.model->parameters()) {
    p.register_hook([&](const Tensor& g) { parts.push_back(DTensor(g).local(0)); });
    p.mutable_grad() = Tensor();
  }
  CHECK(step.backward().size() == 1);
  CHECK(parts.size() == 4);
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: adding to existing gradients takes one collective") {
  Step step;
  step.backward();
  std::vector<Tensor> before;
  for (const Tensor& p : step.model->parameters()) before.push_back(p.grad());
  int times = 2;
  SECTION("unchanged gradients") {}
  SECTION("gradients set to zero, read through handles of their memory") {
    for (Tensor& g : before) {
      g.zero_();
      g = g.detach();
    }
    times = 1;
  }
  CHECK(step.backward().size() == 1);
  check_gradients(step.model, times);
  for (size_t i = 0; i < before.size(); ++i) {
    const Tensor& grad = step.model->parameters()[i].grad();
    if (times == 2) CHECK(before[i].is_same(grad));
    CHECK(torch::equal(full_tensor(before[i]), full_tensor(grad)));
    CHECK(DTensor(before[i]).placements() == Placements{Replicate()});
  }
}

TEST_CASE("gradient bucket: existing and delayed gradients are added without a collective") {
  Step step;
  step.backward();
  CommDebugMode comm;
  const auto parameters = step.model->parameters();
  {
    DelayGradientReduction delay;
    step.backward();
    step.backward();
  }
  CHECK(comm.total() == 0);
  reduce_gradients(parameters);
  CHECK(comm.total() == 1);
  check_gradients(step.model, 3);
}

TEST_CASE("gradient bucket: existing gradients survive a failed backward") {
  Step step;
  step.backward();
  const Tensor y = step.model[0]->as<torch::nn::Linear>()->forward(step.x);
  const Tensor loss = step.model[2]->as<torch::nn::Linear>()->forward(y.tanh()).pow(2).mean();
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("no further"); });
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("no further"));
  torch::nn::Sequential plain = make_bucket_model();
  loss_of(plain, wave_batch()).backward();
  const auto parameters = step.model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    // Those of the second layer came before the error, and were not reduced yet.
    CHECK(DTensor(parameters[i].grad()).placements() == DTensor(parameters[i]).placements());
    CHECK(same(parameters[i].grad(), plain->parameters()[i].grad()));
    parameters[i].grad().zero_();
  }
  CHECK(step.backward().size() == 1);
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: a failed backward keeps gradients delayed before it") {
  Step step;
  {
    DelayGradientReduction delay;
    step.backward();
  }
  const Tensor loss = loss_of(step.model, step.x);
  {
    ForbidImplicitCommunication forbid;
    CHECK_THROWS(loss.backward());
  }
  for (const Tensor& p : step.model->parameters()) CHECK(p.grad().defined());
}

TEST_CASE("gradient bucket: a failure with a full bucket leaves the gradients unchanged") {
  const DeviceMesh mesh = mesh4();
  constexpr int64_t kSide = 1500;  // two gradients exceed a bucket
  const auto parameter = [&] {
    Tensor p = zeros({kSide, kSide}, mesh, {Replicate()}, {.dtype = torch::kDouble}).requires_grad_();
    p.mutable_grad() = ones({kSide, kSide}, mesh, {Replicate()}, {.dtype = torch::kDouble});
    return p;
  };
  const Tensor a = parameter(), b = parameter(), x = ones({4, kSide}, mesh, {Shard(0)}, {.dtype = torch::kDouble});
  const Tensor loss = x.mm(a).mm(b).sum();
  {
    ForbidImplicitCommunication forbid;
    CHECK_THROWS(loss.backward());
  }
  for (const Tensor& p : {a, b}) {
    CHECK(DTensor(p.grad()).placements() == Placements{Replicate()});
    CHECK(full_tensor(p.grad()).eq(1).all().item<bool>());
  }
}

TEST_CASE("gradient bucket: a failed backward leaves no gradient where there was none") {
  Step step;
  const Tensor loss = loss_of(step.model, step.x);
  {
    ForbidImplicitCommunication forbid;
    CHECK_THROWS(loss.backward());
  }
  for (const Tensor& p : step.model->parameters()) CHECK_FALSE(p.grad().defined());
  CHECK(step.backward().size() == 1);
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: gradients of chosen tensors and of gradients are reduced at once") {
  Step step;
  const auto parameters = step.model->parameters();
  SECTION("gradients of chosen tensors") {
    const auto gradients = torch::autograd::grad({loss_of(step.model, step.x)}, parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {
      CHECK(DTensor(gradients[i]).placements() == Placements{Replicate()});
      CHECK_FALSE(parameters[i].grad().defined());
    }
  }
  SECTION("backward of chosen tensors") {
    loss_of(step.model, step.x).backward({}, std::nullopt, false, parameters);
    check_gradients(step.model);
  }
  SECTION("gradients of gradients") {
    loss_of(step.model, step.x).backward({}, true, /*create_graph=*/true);
    check_gradients(step.model);
    CHECK(parameters[0].grad().requires_grad());
  }
}

TEST_CASE("gradient bucket: a failed backward has no effect on the next one") {
  Step step;
  // Fails when all but the first layer's gradients are computed.
  const Tensor y = step.model[0]->as<torch::nn::Linear>()->forward(step.x);
  const Tensor loss = step.model[2]->as<torch::nn::Linear>()->forward(y.tanh()).pow(2).mean();
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("no further"); });
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("no further"));
  for (const Tensor& p : step.model->parameters()) p.mutable_grad() = Tensor();
  CHECK(step.backward().size() == 1);
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: gradients removed during backward are skipped") {
  Step step;
  const auto parameters = step.model->parameters();
  const Tensor y = step.model->forward(step.x);
  SECTION("removed by another callback at the end of the backward") {
    std::vector<Tensor> seen;
    y.register_hook([&](const Tensor& g) {
      torch::autograd::Engine::get_default_engine().queue_callback([&] {
        for (const Tensor& p : parameters) {
          seen.push_back(p.grad());
          p.mutable_grad() = Tensor();
        }
      });
      return g;
    });
    CommDebugMode comm;
    y.pow(2).mean().backward();
    CHECK(comm.total() == 0);
    CHECK(seen.size() == parameters.size());
    for (const Tensor& p : parameters) CHECK_FALSE(p.grad().defined());
  }
  SECTION("replaced by a hook of another parameter") {
    parameters[0].register_hook([&](const Tensor& g) {
      parameters[1].mutable_grad() = torch::ones({7}, torch::kDouble);
      parameters[2].mutable_grad() = Tensor();
      parameters[3].mutable_grad() = torch::ones_like(parameters[3]);
      return g;
    });
    y.pow(2).mean().backward();
    CHECK_FALSE(is_dtensor(parameters[1].grad()));
    CHECK_FALSE(parameters[2].grad().defined());
    CHECK(torch::equal(full_tensor(parameters[3].grad()), torch::ones({3}, torch::kDouble)));
  }
  for (const Tensor& p : parameters) p.mutable_grad() = Tensor();
  CHECK(step.backward().size() >= 1);
  if (!parameters[2].grad().defined()) return;
  step.backward();
  for (const Tensor& p : parameters) CHECK(DTensor(p.grad()).placements() == Placements{Replicate()});
}

TEST_CASE("gradient bucket: contracts hold at the end of the backward, too") {
  Step step;
  {
    const Tensor loss = loss_of(step.model, step.x);
    CommBudget budget({.max_calls = 1});
    loss.backward();
  }
  for (const Tensor& p : step.model->parameters()) p.mutable_grad() = Tensor();
  const Tensor loss = loss_of(step.model, step.x);
  ForbidImplicitCommunication none;
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("gradient") && Catch::Contains("DelayGradientReduction"));
}

TEST_CASE("gradient bucket: gradients of sharded parameters are reduced at once, without extra memory") {
  Step step;
  for (auto& module : step.model->children()) {
    for (const auto& p : module->named_parameters()) shard_parameter(*module, p.key(), step.mesh, {Shard(0)});
  }
  const auto events = step.backward();
  int gradients = 0;
  for (const CommEvent& e : events) {
    if (e.cause.op != "gradient") continue;
    ++gradients;
    CHECK(e.more_tensors == 0);
  }
  CHECK(gradients > 0);
  check_gradients(step.model);
}

TEST_CASE("gradient bucket: no more bytes at once than a bucket holds") {
  const DeviceMesh mesh(World::abstract(1024), {1024}, {"dp"});
  std::vector<Tensor> weights;
  const int64_t rows = 3 << 10, width = 1 << 10;  // 12 MiB each: two fit
  for (int i = 0; i < 5; ++i) weights.push_back(zeros({rows, width}, mesh, {Replicate()}, {.requires_grad = true}));
  const Tensor x = zeros({4096, rows}, mesh, {Shard(0)});
  Tensor sum = zeros({4096, width}, mesh, {Shard(0)});
  for (const Tensor& w : weights) sum = sum + x.mm(w);
  const Tensor loss = sum.sum();
  CommDebugMode comm;
  loss.backward();
  std::vector<int> tensors;
  for (const CommEvent& e : comm.events()) tensors.push_back(e.more_tensors + 1);
  CHECK(tensors == std::vector<int>{2, 2, 1});
  for (const Tensor& w : weights) CHECK(DTensor(w.grad()).placements() == Placements{Replicate()});
}

TEST_CASE("gradient bucket: backwards of several threads have one each") {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Step step;
      const auto events = step.backward();
      good += events.size() == 1 && DTensor(step.model->parameters()[0].grad()).placements() == Placements{Replicate()};
    });
  }
  for (auto& t : threads) t.join();
  CHECK(good == 4);
}

TEST_CASE("gradient bucket: several dtypes and meshes, tied parameters, a memory limit") {
  const World world = World::local(4);
  const DeviceMesh mesh(world, {4}, {"dp"}), grid(world, {2, 2}, {"a", "b"});
  const auto weight = [](const DeviceMesh& m, at::ScalarType dtype) {
    const Placements placements(static_cast<size_t>(m.ndim()), Replicate());
    return distribute_tensor(torch::arange(12, dtype).view({3, 4}).div(8), m, placements).requires_grad_();
  };
  const Tensor x0 = torch::arange(24, torch::kDouble).view({8, 3}).sub(11).div(16);
  const Tensor single = weight(mesh, at::kFloat), whole = weight(mesh, at::kDouble), other = weight(grid, at::kDouble);
  const auto on = [&](const DeviceMesh& m, at::ScalarType dtype, const Placements& placements) {
    return distribute_tensor(x0.to(dtype), m, placements);
  };
  const auto compute = [&] {
    const Tensor a = on(mesh, at::kFloat, {Shard(0)}).mm(single).tanh().to(at::kDouble);
    const Tensor b = on(mesh, at::kDouble, {Shard(0)}).mm(whole).tanh().mm(whole.t());  // used twice
    const Tensor c = on(grid, at::kDouble, {Shard(0), Shard(0)}).mm(other).tanh();
    return full_tensor(a.sum()) + full_tensor(b.sum()) + full_tensor(c.sum());
  };
  Tensor p_single = full_tensor(single).detach().requires_grad_(),
         p_whole = full_tensor(whole).detach().requires_grad_(), p_other = full_tensor(other).detach().requires_grad_();
  (x0.to(at::kFloat).mm(p_single).tanh().to(at::kDouble).sum() + x0.mm(p_whole).tanh().mm(p_whole.t()).sum() +
   x0.mm(p_other).tanh().sum())
      .backward();
  for (const int64_t limit : {std::numeric_limits<int64_t>::max(), int64_t{400}}) {
    INFO("limit " << limit);
    for (const Tensor& w : {single, whole, other}) w.mutable_grad() = Tensor();
    RedistributeMemoryLimit bounded(limit);
    compute().backward();
    CHECK(at::allclose(full_tensor(single.grad()), p_single.grad()));
    CHECK(at::allclose(full_tensor(whole.grad()), p_whole.grad()));
    CHECK(at::allclose(full_tensor(other.grad()), p_other.grad()));
    for (const Tensor& w : {single, whole, other}) {
      CHECK(DTensor(w.grad()).placements() == DTensor(w).placements());
      CHECK(w.grad().scalar_type() == w.scalar_type());
    }
  }
}

TEST_CASE("gradient bucket: a backward within a backward") {
  struct Again : torch::autograd::Function<Again> {
    static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& w) {
      ctx->save_for_backward({x, w});
      return x.mm(w.detach()).tanh();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list grads) {
      const auto saved = ctx->get_saved_variables();  // like checkpointing: forward again, and its backward
      const at::AutoGradMode grad(true);
      const Tensor x = saved[0].detach().requires_grad_();
      torch::autograd::backward({x.mm(saved[1]).tanh()}, {grads[0]});
      return {x.grad(), Tensor()};
    }
  };
  const DeviceMesh mesh(World::local(4), {4}, {"dp"});
  const Tensor x0 = torch::arange(24, torch::kDouble).view({8, 3}).sin(),
               w0 = torch::arange(9, torch::kDouble).view({3, 3}).cos();
  const auto compute = [](const Tensor& x, const Tensor& w, const Tensor& v) {
    return Again::apply(x.mm(v), w).mm(v).mm(w).sum();
  };
  Tensor wp = w0.clone().requires_grad_(), vp = (w0 * 2).requires_grad_();
  compute(x0, wp, vp).backward();
  Tensor w = leaf(w0, mesh, {Replicate()}), v = leaf(w0 * 2, mesh, {Replicate()});
  compute(distribute_tensor(x0, mesh, {Shard(0)}), w, v).backward();
  CHECK(same(w.grad(), wp.grad()));
  CHECK(same(v.grad(), vp.grad()));
  CHECK(DTensor(w.grad()).placements() == Placements{Replicate()});
  CHECK(DTensor(v.grad()).placements() == Placements{Replicate()});
}

}  // namespace dtensor
