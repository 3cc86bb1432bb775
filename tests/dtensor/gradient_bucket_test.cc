// Gradients of one backward are reduced together, and nobody can tell but by the number of collectives.
#include "dtensor/extend/gradient_bucket.h"

#include <torch/autograd.h>
#include <torch/nn.h>

#include <atomic>
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

torch::nn::Sequential make_model() {
  torch::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  model->to(torch::kDouble);
  return model;
}

Tensor batch() { return torch::arange(50, torch::kDouble).view({10, 5}).sin(); }
Tensor loss_of(torch::nn::Sequential& model, const Tensor& x) { return model->forward(x).pow(2).mean(); }

// Every parameter's gradient is that of one device, in the parameter's layout.
void check_gradients(torch::nn::Sequential& model, double times = 1) {
  torch::nn::Sequential plain = make_model();
  loss_of(plain, batch()).backward();
  const auto expected = plain->parameters();
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    INFO("parameter " << i);
    REQUIRE(parameters[i].grad().defined());
    CHECK(DTensor(parameters[i].grad()).placements() == DTensor(parameters[i]).placements());
    CHECK(at::allclose(full_tensor(parameters[i].grad()), expected[i].grad() * times));
  }
}

Tensor replicate_as(const Tensor& plain, const Tensor& t) {
  const DeviceMesh& mesh = DTensor(t).mesh();
  return distribute_tensor(plain, mesh, Placements(static_cast<size_t>(mesh.ndim()), Replicate()));
}

struct Step {
  torch::nn::Sequential model = make_model();
  DeviceMesh mesh{World::local(4), {4}, {"dp"}};
  Tensor x;
  Step() {
    distribute_module(*model, mesh);
    x = distribute_tensor(batch(), mesh, {Shard(0)});
  }
  std::vector<CommEvent> backward() {
    const Tensor loss = loss_of(model, x);
    CommDebugMode comm;
    loss.backward();
    return comm.events();
  }
};

}  // namespace

TEST_CASE("gradient bucket: a data-parallel step reduces all gradients at once, and says whose") {
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

TEST_CASE("gradient bucket: over the meshes of a two-dimensional job") {
  torch::nn::Sequential model = make_model();
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  int number = 0;
  distribute_module(*model, mesh, [&](const std::string&, torch::nn::Module& module, const DeviceMesh& m) {
    for (auto& p : module.named_parameters(/*recurse=*/false)) {
      const int dim = number++ < 2 ? 0 : 1;  // column-parallel, then row-parallel
      const Placement over_tp = p.value().dim() > dim ? Placement(Shard(dim)) : Placement(Replicate());
      shard_parameter(module, p.key(), m, {Replicate(), over_tp});
    }
  });
  const Tensor x = distribute_tensor(batch(), mesh, {Shard(0), Replicate()});
  const Tensor loss = loss_of(model, x);
  CommDebugMode comm;
  loss.backward();
  int gradients = 0;
  for (const CommEvent& e : comm.events()) gradients += e.cause.op == "gradient" ? 1 : 0;
  CHECK(gradients == 1);
  check_gradients(model);
}

TEST_CASE("gradient bucket: who could see a gradient before finds it in its layout") {
  Step step;
  const auto parameters = step.model->parameters();
  SECTION("a hook of one parameter") {
    int calls = 0;
    parameters[2].register_hook([&](const Tensor& g) {
      ++calls;
      CHECK(DTensor(g).placements() == Placements{Replicate()});
      return g;
    });
    CHECK(step.backward().size() == 2);
    CHECK(calls == 1);
    check_gradients(step.model);
  }
  SECTION("a gradient that is there: it is added to") {
    step.backward();
    CHECK(step.backward().size() == 4);
    check_gradients(step.model, 2);
  }
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

TEST_CASE("gradient bucket: a backward that fails leaves nothing to the next one") {
  Step step;
  // Fails when all but the first layer's gradients are there.
  const Tensor y = step.model[0]->as<torch::nn::Linear>()->forward(step.x);
  const Tensor loss = step.model[2]->as<torch::nn::Linear>()->forward(y.tanh()).pow(2).mean();
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("no further"); });
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("no further"));
  for (const Tensor& p : step.model->parameters()) p.mutable_grad() = Tensor();
  CHECK(step.backward().size() == 1);
  check_gradients(step.model);
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

TEST_CASE("gradient bucket: what is split is reduced at once, so that waiting takes no memory") {
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

TEST_CASE("gradient bucket: as many bytes at once as a bucket holds") {
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

TEST_CASE("gradient bucket: of several dtypes and meshes, tied, and under a memory limit") {
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
      const auto saved = ctx->get_saved_variables();  // as checkpointing does: forward once more, and its backward
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

// Tables split by rows, whose gradients want the rows of the whole batch.
struct Tables {
  static constexpr int64_t kRows = 10, kWidth = 3;
  DeviceMesh mesh{World::local(4), {4}, {"all"}};
  std::vector<Tensor> plain, tables;
  Tensor ids0, ids;

  explicit Tables(int64_t count = 3) {
    torch::manual_seed(8);
    for (int64_t i = 0; i < count; ++i) {
      plain.push_back(torch::randn({kRows + i, kWidth}, torch::kDouble).requires_grad_());
      tables.push_back(leaf(plain.back(), mesh, {Shard(0)}));
    }
    ids0 = torch::randint(kRows, {8, count, 2});
    ids = distribute_tensor(ids0, mesh, {Shard(0)});
  }

  static Tensor loss(const std::vector<Tensor>& tables, const Tensor& ids) {
    Tensor sum;
    for (size_t i = 0; i < tables.size(); ++i) {
      const Tensor rows = torch::embedding(tables[i], ids.select(1, static_cast<int64_t>(i)));
      const Tensor loss = (rows.sum(1).pow(3) * ids.sum(2).narrow(1, 0, 1).sin()).sum();
      sum = sum.defined() ? sum + loss : loss;
    }
    return sum;
  }
  // Collectives of backward that are not of the loss.
  std::vector<CommEvent> backward() {
    const Tensor value = loss(tables, ids);
    CommDebugMode comm;
    value.backward();
    return comm.events();
  }
  void check(double times = 1) {
    for (auto& t : plain) t.mutable_grad() = Tensor();
    loss(plain, ids0).backward();
    for (size_t i = 0; i < plain.size(); ++i) {
      INFO("table " << i);
      CHECK(DTensor(tables[i].grad()).placements() == Placements{Shard(0)});
      CHECK(same(tables[i].grad(), plain[i].grad() * times));
    }
  }
};

TEST_CASE("gradient bucket: all tables want the batch, which comes once") {
  Tables step;
  for (int round = 0; round < 2; ++round) {  // decided now, and before
    const auto events = step.backward();
    REQUIRE(events.size() == 1);
    CHECK(events[0].collective == Collective::kAllGather);
    CHECK(events[0].backward);
    CHECK(events[0].cause.op == "aten::embedding_dense_backward");
    CHECK_THAT(events[0].cause.argument, Catch::StartsWith("grad_output") && Catch::EndsWith(" more"));
    step.check();
    for (const Tensor& t : step.tables) t.mutable_grad() = Tensor();
  }
}

TEST_CASE("gradient bucket: a table's gradient that somebody reads before is there") {
  Tables step;
  SECTION("in a hook, and is replaced") {
    step.tables[1].register_hook([&](const Tensor& g) { return g * 2; });
    step.plain[1].register_hook([](const Tensor& g) { return g * 2; });
    CHECK(step.backward().size() == 2);
    step.check();
  }
  SECTION("since it is added to one that is there") {
    step.backward();
    CHECK(step.backward().size() == 3);
    step.check(2);
  }
  SECTION("by another table's hook: of the tables whose turn has come") {
    int64_t seen = 0;
    step.tables[0].register_hook([&](const Tensor& g) {
      for (size_t i = 1; i < 3; ++i) {
        if (step.tables[i].grad().defined()) seen += full_tensor(step.tables[i].grad()).count_nonzero().item<int64_t>();
      }
      return g;
    });
    step.backward();
    step.check();
    CHECK(seen > 0);
  }
  SECTION("chosen, or to be differentiated") {
    const auto chosen = torch::autograd::grad({step.loss(step.tables, step.ids)}, step.tables);
    Tables again;
    again.loss(again.tables, again.ids).backward({}, true, /*create_graph=*/true);
    again.check();
    for (size_t i = 0; i < 3; ++i) CHECK(same(chosen[i], again.plain[i].grad()));
  }
  SECTION("of a table that is used twice, and after a backward that failed") {
    const Tensor x = torch::embedding(step.tables[0], step.ids.select(1, 0));
    const Tensor y = x + torch::embedding(step.tables[0], step.ids.select(1, 1)) +
                     torch::embedding(step.tables[1], step.ids.select(1, 2));
    y.pow(3).sum().backward();
    const Tensor x0 = torch::embedding(step.plain[0], step.ids0.select(1, 0));
    const Tensor y0 = x0 + torch::embedding(step.plain[0], step.ids0.select(1, 1)) +
                      torch::embedding(step.plain[1], step.ids0.select(1, 2));
    y0.pow(3).sum().backward();
    CHECK(same(step.tables[0].grad(), step.plain[0].grad()));
    CHECK(same(step.tables[1].grad(), step.plain[1].grad()));

    Tables failing;
    const Tensor first = torch::embedding(failing.tables[0], failing.ids.select(1, 0));
    first.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("no further"); });
    const Tensor second = torch::embedding(failing.tables[1], failing.ids.select(1, 1));  // its turn is first
    CHECK_THROWS_WITH((first * second).sum().backward(), Catch::Contains("no further"));
    const Tensor f0 = failing.plain[0].detach(), s0 = failing.plain[1];
    (torch::embedding(f0, failing.ids0.select(1, 0)) * torch::embedding(s0, failing.ids0.select(1, 1)))
        .sum()
        .backward();
    if (failing.tables[1].grad().defined()) CHECK(same(failing.tables[1].grad(), s0.grad()));
    for (const Tensor& t : failing.tables) t.mutable_grad() = Tensor();
    CHECK(failing.backward().size() == 1);
    failing.check();
  }
}

TEST_CASE("gradient bucket: a table's gradient is of what was there when its turn came") {
  const DeviceMesh mesh(World::local(4), {4}, {"all"});
  const auto run = [](const Tensor& table, const Tensor& ids, const Tensor& x) {
    const Tensor h = x * 2, y = h + torch::embedding(table, ids);
    h.register_hook([](Tensor g) { g.zero_(); });  // the gradient that both have, after the table's turn
    (y * y).sum().backward();
  };
  torch::manual_seed(9);
  const Tensor table = torch::randn({10, 3}, torch::kDouble), ids = torch::randint(10, {8}),
               x = torch::randn({8, 3}, torch::kDouble);
  const Tensor plain = table.clone().requires_grad_(), x_plain = x.clone().requires_grad_();
  run(plain, ids, x_plain);
  const Tensor split = leaf(table, mesh, {Shard(0)}), x_split = leaf(x, mesh, {Shard(0)});
  run(split, distribute_tensor(ids, mesh, {Shard(0)}), x_split);
  CHECK(same(split.grad(), plain.grad()));
  CHECK(same(x_split.grad(), x_plain.grad()));
}

TEST_CASE("gradient bucket: tables of two worlds, and one whose rows are looked up") {
  Tables a, b(2);
  torch::autograd::backward({a.loss(a.tables, a.ids), b.loss(b.tables, b.ids)}, {});
  a.check();
  b.check();

  // The rows of one table are looked up in, with weights that want a gradient, too.
  const DeviceMesh mesh(World::local(4), {4}, {"all"});
  torch::manual_seed(10);
  const Tensor table = torch::randn({9, 2}, torch::kDouble), of_table = torch::randint(9, {8}),
               ids = torch::randint(8, {12}), weights = torch::randn({12}, torch::kDouble);
  const auto run = [&](const Tensor& t, const Tensor& rows, const Tensor& i, const Tensor& w, const Tensor& offsets) {
    std::get<0>(torch::embedding_bag(torch::embedding(t, rows), i, offsets, false, 0, false, w))
        .pow(2)
        .sum()
        .backward();
  };
  const Tensor offsets = torch::arange(0, 12, 3);
  const Tensor t0 = table.clone().requires_grad_(), w0 = weights.clone().requires_grad_();
  run(t0, of_table, ids, w0, offsets);
  const Tensor t1 = leaf(table, mesh, {Shard(0)}), w1 = leaf(weights, mesh, {Replicate()});
  run(t1, distribute_tensor(of_table, mesh, {Shard(0)}), distribute_tensor(ids, mesh, {Replicate()}), w1,
      distribute_tensor(offsets, mesh, {Replicate()}));
  CHECK(same(t1.grad(), t0.grad()));
  CHECK(same(w1.grad(), w0.grad()));
}

TEST_CASE("gradient bucket: of tables as much of the batch at once as a bucket holds") {
  const DeviceMesh mesh(World::abstract(16), {16}, {"all"});
  const int64_t samples = 16 << 10, width = 160;  // 10 MiB of rows for each table, and ids
  std::vector<Tensor> tables;
  for (int i = 0; i < 5; ++i) tables.push_back(zeros({1 << 22, width}, mesh, {Shard(0)}, {.requires_grad = true}));
  const Tensor ids = zeros({samples, 5}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  const Tensor weights = zeros({samples, width}, mesh, {Shard(0)});
  Tensor loss;
  for (int64_t i = 0; i < 5; ++i) {
    const Tensor one = (torch::embedding(tables[i], ids.select(1, i)) * weights).sum();
    loss = loss.defined() ? loss + one : one;
  }
  CommDebugMode comm;
  loss.backward();
  CAPTURE(comm.to_string());
  CHECK(comm.count(Collective::kAllGather) == 3);
  for (const Tensor& t : tables) CHECK(DTensor(t.grad()).placements() == Placements{Shard(0)});
}

TEST_CASE("gradient bucket: bags of tables, too") {
  Tables step;
  const auto loss = [](const std::vector<Tensor>& tables, const Tensor& ids) {
    Tensor sum;
    for (size_t i = 0; i < tables.size(); ++i) {
      const Tensor flat = ids.select(1, static_cast<int64_t>(i)).reshape({-1});
      const Tensor bags = torch::arange(0, flat.numel(), 2);
      const Tensor pooled =
          std::get<0>(torch::embedding_bag(tables[i], flat, is_dtensor(flat) ? replicate_as(bags, flat) : bags));
      sum = sum.defined() ? sum + pooled : pooled;
    }
    return sum.pow(3).sum();
  };
  loss(step.tables, step.ids).backward();
  loss(step.plain, step.ids0).backward();
  for (size_t i = 0; i < 3; ++i) CHECK(same(step.tables[i].grad(), step.plain[i].grad()));
}

}  // namespace dtensor
