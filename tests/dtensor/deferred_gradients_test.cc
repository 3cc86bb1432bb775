// Gradients of tables are deferred and computed together, without any difference but the number of collectives.
#include <torch/autograd.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "observe/comm_contracts.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

Tensor replicate_as(const Tensor& plain, const Tensor& t) {
  const DeviceMesh& mesh = DTensor(t).mesh();
  return distribute_tensor(plain, mesh, Placements(static_cast<size_t>(mesh.ndim()), Replicate()));
}

// Tables sharded by rows, whose gradients need the rows of the whole batch.
struct Tables {
  static constexpr int64_t kRows = 20, kWidth = 3;
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
  // Collectives of backward, without those of the loss.
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

}  // namespace

TEST_CASE("deferred gradients: several tables gather the batch once") {
  Tables step;
  for (int round = 0; round < 2; ++round) {  // new decisions, and cached ones
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

TEST_CASE("deferred gradients: reading a table's gradient computes it") {
  Tables step;
  SECTION("in a hook that replaces it") {
    step.tables[1].register_hook([&](const Tensor& g) { return g * 2; });
    step.plain[1].register_hook([](const Tensor& g) { return g * 2; });
    CHECK(step.backward().size() == 2);
    step.check();
  }
  SECTION("by adding to an existing gradient") {
    step.backward();
    CHECK(step.backward().size() == 3);
    step.check(2);
  }
  SECTION("in a hook of another table, for tables before it") {
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
  SECTION("for chosen tensors, or to be differentiated") {
    const auto chosen = torch::autograd::grad({step.loss(step.tables, step.ids)}, step.tables);
    Tables again;
    again.loss(again.tables, again.ids).backward({}, true, /*create_graph=*/true);
    again.check();
    for (size_t i = 0; i < 3; ++i) CHECK(same(chosen[i], again.plain[i].grad()));
  }
  SECTION("for a table used twice, and after a failed backward") {
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
    const Tensor second = torch::embedding(failing.tables[1], failing.ids.select(1, 1));  // is processed first
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

TEST_CASE("deferred gradients: a table's gradient uses the inputs at the time of its turn") {
  const DeviceMesh mesh(World::local(4), {4}, {"all"});
  const auto run = [](const Tensor& table, const Tensor& ids, const Tensor& x) {
    const Tensor h = x * 2, y = h + torch::embedding(table, ids);
    h.register_hook([](Tensor g) { g.zero_(); });  // changes the gradient that both share, after the table's turn
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

TEST_CASE("deferred gradients: with a bucket limit of 0, every table gathers its batch by itself") {
  Tables step;
  limit_gradient_bucket_bytes(step.mesh.world(), 0);
  CHECK(step.backward().size() == 3);
  step.check();
}

TEST_CASE("deferred gradients: tables of two worlds, and a table whose rows are looked up") {
  Tables a, b(2);
  torch::autograd::backward({a.loss(a.tables, a.ids), b.loss(b.tables, b.ids)}, {});
  a.check();
  b.check();

  // The rows of one table are looked up in, with weights that require grad, too.
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

TEST_CASE("deferred gradients: no more of the batch is gathered at once than a bucket holds") {
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

TEST_CASE("deferred gradients: embedding bags, too") {
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

TEST_CASE("deferred gradients: views of a gradient that is not computed yet") {
  using View = std::function<Tensor(const Tensor&)>;
  const std::vector<View> views = {
      [](const Tensor& t) { return t.select(1, 0); },
      [](const Tensor& t) { return t.slice(1, 1, 3); },
      [](const Tensor& t) { return t.t(); },
      [](const Tensor& t) {
        return t.permute({1, 0}).slice(0, 0, 2);
      },
      [](const Tensor& t) {
        return t.unsqueeze(0).expand({2, t.size(0), t.size(1)});
      },
      [](const Tensor& t) { return t.unbind(1)[2]; },
      [](const Tensor& t) { return t.split(1, 1)[1].squeeze(1); },
      [](const Tensor& t) { return t.unfold(1, 2, 1); },
      [](const Tensor& t) { return t.detach(); },
  };
  for (size_t k = 0; k < views.size(); ++k) {
    CAPTURE(k);
    Tables step;
    Tensor seen, read;
    step.tables[0].register_hook([&](const Tensor& g) {
      seen = views[k](step.tables[2].grad());
      read = full_tensor(views[k](step.tables[1].grad()));
      return g;
    });
    step.backward();
    step.check();
    CHECK(same(seen, views[k](step.plain[2].grad())));
    CHECK(torch::allclose(read, views[k](step.plain[1].grad()), 1e-10, 1e-12));
  }
}

TEST_CASE("deferred gradients: a hook registered after forward gets its gradient") {
  Tables step;
  const Tensor loss = step.loss(step.tables, step.ids);
  Tensor column;
  step.tables[1].register_hook([&](const Tensor& g) {
    column = full_tensor(g.select(1, 0));
    return g * 2;
  });
  step.plain[1].register_hook([](const Tensor& g) { return g * 2; });
  CommDebugMode comm;
  loss.backward();
  CHECK(comm.total() == 3);
  step.check();
  CHECK(torch::allclose(column * 2, step.plain[1].grad().select(1, 0), 1e-10, 1e-12));
}

// A table that shares its output gradient with another tensor, whose turn comes later: `then` is called with it.
struct Shared {
  DeviceMesh mesh{World::local(4), {4}, {"all"}};
  Tensor table0, ids0, x0;
  Tensor table, ids, x;
  Shared() {
    torch::manual_seed(9);
    table0 = torch::randn({10, 3}, torch::kDouble).requires_grad_();
    ids0 = torch::randint(10, {8});
    x0 = torch::randn({8, 3}, torch::kDouble).requires_grad_();
    table = leaf(table0, mesh, {Shard(0)});
    ids = distribute_tensor(ids0, mesh, {Shard(0)});
    x = leaf(x0, mesh, {Shard(0)});
    run(table0, ids0, x0, {});
  }
  using Then = std::function<void(Tensor)>;
  static void run(const Tensor& table, const Tensor& ids, const Tensor& x, const Then& then) {
    const Tensor h = x * 2, y = h + torch::embedding(table, ids);
    if (then) h.register_hook([then](const Tensor& g) { then(g); });
    (y * y).sum().backward();
  }
  void run(const Then& then) { run(table, ids, x, then); }
  // Calls `body` in a backward, when the table's gradient is deferred.
  void while_deferred(const std::function<void()>& body) {
    run([&](const Tensor&) {
      REQUIRE(table.grad().defined());
      body();
    });
  }
  bool is_right() const { return same(table.grad(), table0.grad()); }
};

TEST_CASE("deferred gradients: a write in a nested backward is respected") {
  struct Again : torch::autograd::Function<Again> {
    static Tensor forward(torch::autograd::AutogradContext*, const Tensor& h) { return h * 1; }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list grads) {
      const at::AutoGradMode grad(true);
      const Tensor inner = grads[0].detach().mul(2).requires_grad_();
      inner.register_hook([g = grads[0]](const Tensor&) {
        const at::AutoGradMode no_grad(false);
        g.clamp_(-1, 1);
      });
      torch::autograd::backward({(inner * inner).sum()}, {});
      return {grads[0]};
    }
  };
  Shared s;
  const auto run = [](const Tensor& table, const Tensor& ids, const Tensor& x) {
    const Tensor h = Again::apply(x * 2), y = h + torch::embedding(table, ids);
    (y * y).sum().backward();
  };
  for (Tensor* t : {&s.table0, &s.x0}) t->mutable_grad() = Tensor();
  run(s.table0, s.ids0, s.x0);
  run(s.table, s.ids, s.x);
  CHECK(s.is_right());
  CHECK(same(s.x.grad(), s.x0.grad()));
}

TEST_CASE("deferred gradients: a write in backward is respected") {
  Shared s;
  s.while_deferred([&] {
    SECTION("written to the inputs") { s.ids.copy_(torch::zeros_like(s.ids)); }
    SECTION("by a load") {
      const testing::TempFolder folder;
      const auto load_zeros = [&](Tensor into) {
        SECTION("of a tensor") {
          save(torch::zeros_like(s.ids0), folder / "zeros.pt");
          load(into, folder / "zeros.pt");
        }
        SECTION("of a checkpoint") {
          CheckpointContents contents{.tensors = {{"ids", torch::zeros_like(s.ids0)}}, .random_state = false};
          save_checkpoint(folder / "checkpoint", contents);
          contents.tensors["ids"] = into;
          load_checkpoint(folder / "checkpoint", contents);
        }
      };
      SECTION("to the input itself") { load_zeros(s.ids); }
      SECTION("to a view of the input") { load_zeros(s.ids.slice(0, 0, 8)); }
      CHECK(full_tensor(s.ids).eq(0).all().item<bool>());
    }
    SECTION("by another thread, to a view of the input") {
      std::thread([&] { s.ids.slice(0, 1, 7).zero_(); }).join();
    }
    SECTION("written to the gradient") {
      s.table.grad().mul_(2);
      s.table0.mutable_grad() = s.table0.grad() * 2;
    }
  });
  CHECK(s.is_right());
}

TEST_CASE("deferred gradients: after a failed backward they are as before it, and keep no table alive") {
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> table;
  Tensor kept;
  {
    Shared s;
    const auto fails = [&] {
      kept = s.table.grad();
      CHECK(CallHook::watching() != nullptr);
      throw std::runtime_error("no further");
    };
    CHECK_THROWS_WITH(s.while_deferred(fails), Catch::Contains("no further"));
    CHECK_FALSE(s.table.grad().defined());
    CommDebugMode comm;
    s.ids.zero_();
    CHECK_THROWS_WITH(full_tensor(kept), Catch::Contains("a backward() that has failed"));
    CHECK(comm.total() == 0);
    s.ids.copy_(distribute_tensor(s.ids0, s.mesh, {Shard(0)}));
    s.run({});
    CHECK(s.is_right());
    table.emplace(s.table.getIntrusivePtr());
  }
  CHECK(table->expired());
  kept = Tensor();
  CHECK(CallHook::watching() == nullptr);
}

TEST_CASE("deferred gradients: rebinding or writing exposed inputs has no effect") {
  Shared s;
  SECTION("set_data of the output gradient") {
    s.run([&](Tensor g) { g.set_data(zeros({8, 3}, s.mesh, {Shard(0)}, {.dtype = torch::kDouble})); });
  }
  SECTION("set_data of the indices") {
    s.run([&](const Tensor&) { s.ids.set_data(zeros({8}, s.mesh, {Shard(0)}, {.dtype = torch::kLong})); });
  }
  SECTION("writes to local tensors obtained before") {
    std::vector<Tensor> parts;
    for (const Tensor& part : s.ids0.chunk(4)) parts.push_back(part.clone());
    s.ids = from_local(parts, s.mesh, {Shard(0)});
    s.run([&](const Tensor&) {
      for (const Tensor& part : parts) part.zero_();
    });
  }
  SECTION("writes to local tensors obtained later") {
    s.run([&](const Tensor& g) {
      for (const Tensor& part : mutable_local_tensors(g)) part.zero_();
      for (const Tensor& part : mutable_local_tensors(s.ids)) part.zero_();
    });
  }
  SECTION("writes to plain indices") {
    const ImplicitReplication alike;
    const Tensor plain = s.ids0.clone();
    Shared::run(s.table, plain, s.x, [&](const Tensor&) { plain.zero_(); });
  }
  CHECK(s.is_right());
}

TEST_CASE("deferred gradients: exposing an input waits for running calls") {
  // The gradients' collective lets another thread request the local tensors, and write to them once it gets them.
  struct Asks : CommListener {
    std::function<void()> ask;
    std::thread asking;
    void on_comm(const CommEvent&, bool before) override {
      if (!before || asking.joinable()) return;
      asking = std::thread(ask);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  };
  Shared s;
  Asks asks;
  asks.ask = [&] {
    for (const Tensor& part : mutable_local_tensors(s.ids)) part.zero_();
  };
  s.while_deferred([&] {
    const ScopeGuard listening([&](Scope& scope) { scope.listeners.push_back(&asks); });
    CHECK(s.is_right());
  });
  REQUIRE(asks.asking.joinable());
  asks.asking.join();
  CHECK(same(s.ids, torch::zeros_like(s.ids0)));
}

TEST_CASE("deferred gradients: a gradient set to zero is not computed") {
  Shared s;
  const auto zero_grad = [&] { torch::optim::SGD({s.table}, 0.1).zero_grad(/*set_to_none=*/false); };
  s.while_deferred([&] {
    SECTION("before it was read") {
      CommDebugMode comm;
      SECTION("to zero") { zero_grad(); }
      SECTION("to a number") { s.table.grad().fill_(0.); }
      SECTION("to another gradient's value") { s.table.grad().copy_(torch::zeros_like(s.table)); }
      CHECK(comm.total() == 0);
    }
    SECTION("after its computation failed") {
      {
        ForbidImplicitCommunication none;
        CHECK_THROWS_WITH(full_tensor(s.table.grad()), Catch::Contains("ForbidImplicitCommunication"));
      }
      CHECK_THROWS_WITH(full_tensor(s.table.grad()), Catch::Contains("ForbidImplicitCommunication"));
      zero_grad();
    }
  });
  CHECK(same(s.table.grad(), torch::zeros_like(s.table0)));
  s.run({});
  CHECK(s.is_right());
}

TEST_CASE("deferred gradients: a failed write does not lose the gradient") {
  Shared s;
  s.while_deferred([&] {
    const Tensor grad = s.table.grad();
    SECTION("an error for the value") { CHECK_THROWS(grad.fill_(c10::complex<double>(1, 2))); }
    SECTION("an error for the communication") {
      const Tensor other = zeros({10, 3}, s.mesh, {Shard(1)}, {.dtype = torch::kDouble});
      {
        ForbidImplicitCommunication none;
        CHECK_THROWS_WITH(grad.copy_(other), Catch::Contains("ForbidImplicitCommunication"));
      }
      SECTION("followed by a successful write") {
        grad.copy_(other);
        s.table0.mutable_grad() = torch::zeros_like(s.table0);
      }
      SECTION("followed by a write to its inputs") { s.ids.zero_(); }
    }
    SECTION("to its view") {
      CHECK_THROWS(grad.detach().fill_(c10::complex<double>(1, 2)));
      CHECK(same(grad.select(1, 1), s.table0.grad().select(1, 1)));
    }
  });
  CHECK(s.is_right());
}

TEST_CASE("deferred gradients: a gradient overwritten by values read from it is computed first") {
  Shared s;
  s.while_deferred([&] {
    const Tensor grad = s.table.grad();
    grad.copy_(grad.select(1, 0).unsqueeze(1).expand_as(grad));
  });
  s.table0.mutable_grad() = s.table0.grad().select(1, 0).unsqueeze(1).expand_as(s.table0).clone();
  CHECK(s.is_right());
  s.table.mutable_grad() = Tensor();
  s.while_deferred([&] { s.table.grad().select(1, 1).zero_(); });
  s.table0.mutable_grad() = Tensor();
  Shared::run(s.table0, s.ids0, s.x0, {});
  s.table0.grad().select(1, 1).zero_();
  CHECK(s.is_right());
}

}  // namespace dtensor
