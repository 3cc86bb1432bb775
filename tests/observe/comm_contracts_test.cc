// ForbidImplicitCommunication and CommBudget.
#include "observe/comm_contracts.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <atomic>
#include <thread>

#include "comm/communicator.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/scopes.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/observe/mesh_of_four.h"
#include "tests/testing/catch_torch.h"

using Catch::Contains;
using Catch::Equals;

namespace dtensor {
using namespace internal;

namespace {

at::Tensor values() { return at::arange(16, at::kFloat).reshape({8, 2}); }
at::Tensor sharded() { return distribute_tensor(values(), mesh(), {Shard(0), Replicate()}); }

// What `run` throws, without the backtrace; "" if nothing.
template <typename Fn>
std::string error_of(Fn run) {
  try {
    run();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "";
}

// One that the library would make for `cause`, as the communicator sees it.
void communicate(const CommCause& cause, int64_t bytes, std::shared_ptr<const LayoutChange> change = nullptr) {
  CommCall call;
  call.group = &mesh().get_group("tp");
  call.ranks = mesh().local_ranks();
  call.event.cause = cause;
  call.event.bytes = bytes;
  call.event.layout_change = std::move(change);
  const RankTensors inputs(4, at::ones({4}));
  mesh().world().communicator().all_gather(call, inputs);
}

const CommCause kImplicit{"aten::mm", "mat2", "layers.0.wq", true};
const CommCause kExplicit{"redistribute", "", "", false};

}  // namespace

TEST_CASE("forbid implicit communication: the error names operator, argument, layouts and remedies") {
  const auto change = std::make_shared<const LayoutChange>(at::kFloat, Shape{8, 8}, Placements{Shard(0)},
                                                           Placements{Replicate()}, mesh().to_string());
  ForbidImplicitCommunication forbid;
  CHECK_THAT(
      error_of([&] { communicate(kImplicit, 384, change); }),
      Equals("aten::mm: argument 'mat2' would need an all_gather over tp, 384 B: f32[8, 8](S(0)) -> (R) @ mesh(dp=2, "
             "tp=2), in layers.0.wq. ForbidImplicitCommunication is active. Redistribute it before the call, "
             "redistribute(t, placements), or give it a layout that the operator takes, or end the guard's block "
             "before the call."));
  CHECK_THAT(
      error_of([&] {
        communicate({"gradient", "layers.0.weight", "layers.0", true}, 8);
      }),
      Contains("gradient: argument 'layers.0.weight' would need an all_gather over tp, 8 B, in layers.0. ") &&
          Contains(
              "Open a DelayGradientReduction scope around backward(), and call reduce_gradients() after it, or end"));
  CHECK_THAT(error_of([&] {
               communicate({"", "", "", true}, 0);
             }),
             Contains("communication: would need an all_gather over tp, 0 B. Forbid"));
  communicate(kExplicit, 384);
}

TEST_CASE("forbid implicit communication: explicit calls run, inserted ones throw, only inside the block") {
  const auto x = partial();
  {
    CommDebugMode comm;
    ForbidImplicitCommunication forbid;
    redistribute(x, {Replicate(), Replicate()});
    full_tensor(x);
    CHECK_THAT(error_of([&] { x.exp(); }), Contains("aten::exp: argument 'self' would need an all_reduce over tp, ") &&
                                               Contains("ForbidImplicitCommunication is active"));
    CHECK(comm.total() == 2);
    CHECK(comm.implicit_count() == 0);
  }
  CHECK(at::equal(full_tensor(x.exp()), full_tensor(x).exp()));
}

TEST_CASE("contracts: a violation leaves nothing half done, and the same call works later") {
  const auto x = distribute_tensor(values(), mesh(), {Replicate(), Replicate()});
  const auto addend = partial();
  const auto bytes = mesh().world().memory().live_bytes();
  const auto before = full_tensor(x).clone();
  {
    ForbidImplicitCommunication forbid;
    CHECK_THAT(error_of([&] { x.add_(addend); }),
               Contains("aten::add_.Tensor: argument 'other' would need an all_reduce over tp"));
  }
  CHECK(at::equal(full_tensor(x), before));
  CHECK(DTensor(x).placements() == Placements{Replicate(), Replicate()});
  CHECK(DTensor(addend).placements() == Placements{Replicate(), Partial()});
  {
    // Two collectives, of which one fits: the first has run when the second throws.
    const auto y = full({8, 4}, 1.0, mesh(), {Partial(), Shard(0)});
    CommBudget budget({.max_calls = 1});
    CHECK_THAT(error_of([&] {
                 redistribute(y, {Replicate(), Replicate()});
               }),
               Contains("The CommBudget allows 1 collective (max_calls), and as many are used"));
    CHECK(budget.calls() == 1);
    CHECK(DTensor(y).placements() == Placements{Partial(), Shard(0)});
  }
  CHECK(mesh().world().memory().live_bytes() == bytes);
  x.add_(addend);
  CHECK(at::equal(full_tensor(x), before.add(1)));
}

TEST_CASE("contracts: gradients of a backward that throws are unchanged, and the next one is right") {
  const auto w = distribute_tensor(at::ones({2, 3}), mesh(), {Replicate(), Replicate()}).requires_grad_();
  const auto step = [&] { return full_tensor(sharded().mm(w).sum()); };
  step().backward();
  const auto gradient = full_tensor(w.grad()).clone();
  {
    const auto loss = step();
    ForbidImplicitCommunication forbid;
    CHECK_THAT(error_of([&] { loss.backward(); }), Contains("gradient: would need an all_reduce over dp, ") &&
                                                       Contains(", in backward. ForbidImplicitCommunication"));
  }
  CHECK(at::equal(full_tensor(w.grad()), gradient));
  {
    const auto loss = step();
    CommBudget budget({.max_calls = 0});
    CHECK_THAT(error_of([&] { loss.backward(); }), Contains(", in backward. The CommBudget allows 0 collectives"));
  }
  w.mutable_grad() = at::Tensor();
  {
    ForbidImplicitCommunication forbid;  // as the error says
    {
      DelayGradientReduction delay;
      step().backward();
    }
    reduce_gradients({w});
  }
  CHECK(at::equal(full_tensor(w.grad()), gradient));
}

TEST_CASE("comm budget: the call that would exceed it throws before it runs") {
  const auto change = std::make_shared<const LayoutChange>(at::kFloat, Shape{8}, Placements{Shard(0)},
                                                           Placements{Replicate()}, mesh().to_string());
  CommDebugMode comm;
  CommBudget budget({.max_calls = 3, .max_bytes = 100});
  communicate(kImplicit, 60);
  CHECK_THAT(
      error_of([&] { communicate(kImplicit, 41, change); }),
      Equals(
          "aten::mm: argument 'mat2' would need an all_gather over tp, 41 B: f32[8](S(0)) -> (R) @ mesh(dp=2, tp=2), "
          "in layers.0.wq. The CommBudget allows 100 B (max_bytes), of which 60 B are used. Redistribute a tensor once "
          "and use the result again, or raise the limit."));
  CHECK(budget.calls() == 1);
  CHECK(budget.bytes() == 60);
  communicate(kExplicit, 40);
  communicate(kExplicit, 0);
  CHECK_THAT(error_of([&] { communicate(kExplicit, 0); }),
             Equals("redistribute: would need an all_gather over tp, 0 B. The CommBudget allows 3 collectives "
                    "(max_calls), and as many are used. Redistribute a tensor once and use the result again, or raise "
                    "the limit."));
  CHECK(budget.calls() == 3);
  CHECK(budget.bytes() == 100);
  CHECK(comm.total() == 3);
}

TEST_CASE("comm budget: budgets nest, and calls rejected by an inner guard do not count in the outer one") {
  CommBudget outer({.max_calls = 3});
  communicate(kImplicit, 1);
  {
    CommBudget inner({.max_calls = 1});
    communicate(kImplicit, 1);
    CHECK_THAT(error_of([] { communicate(kImplicit, 1); }), Contains("allows 1 collective "));
    CHECK(inner.calls() == 1);
    CHECK(outer.calls() == 2);
    ForbidImplicitCommunication forbid;
    CHECK_THAT(error_of([] { communicate(kImplicit, 1); }), Contains("allows 1 collective "));
  }
  {
    ForbidImplicitCommunication forbid;
    CHECK_THAT(error_of([] { communicate(kImplicit, 1); }), Contains("ForbidImplicitCommunication"));
  }
  CHECK(outer.calls() == 2);
  CHECK(outer.bytes() == 2);
  communicate(kImplicit, 1);
  CHECK_THAT(error_of([] { communicate(kImplicit, 1); }), Contains("allows 3 collectives"));
}

TEST_CASE("comm budget: without limits, and with invalid ones") {
  CommBudget unlimited({});
  communicate(kImplicit, int64_t{1} << 62);
  communicate(kImplicit, int64_t{1} << 61);
  CHECK(unlimited.calls() == 2);
  // More than can be counted is more than any limit.
  CHECK_THAT(error_of([] { communicate(kImplicit, int64_t{1} << 62); }),
             Contains("allows 9223372036854775807 B (max_bytes), of which "));
  CHECK_THAT(error_of([] { CommBudget bad({.max_bytes = -1}); }),
             Contains("[CommBudget] max_calls is ") && Contains(" and max_bytes is -1; a limit is at least 0"));
  CHECK_THAT(error_of([] { CommBudget bad({.max_calls = -1}); }), Contains("[CommBudget] max_calls is -1"));
  communicate(kImplicit, 1);  // the guards that threw left nothing behind
}

TEST_CASE("comm budget: threads that share a scope share the budget") {
  CommBudget budget({.max_calls = 100});
  const at::ThreadLocalState state;
  std::atomic<int> done{0}, refused{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&] {
      at::ThreadLocalStateGuard of_caller(state);
      for (int i = 0; i < 50; ++i) {
        try {
          communicate(kImplicit, 1);
          ++done;
        } catch (const c10::Error&) {
          ++refused;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(done == 100);
  CHECK(refused == 100);
  CHECK(budget.calls() == 100);
}

}  // namespace dtensor
