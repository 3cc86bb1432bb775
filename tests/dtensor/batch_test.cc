// A batch of plans: which steps share one collective, the cost, and the values.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <random>

#include "comm/scope.h"
#include "dtensor/redistribution/internal/executor.h"
#include "mesh/memory_meter.h"
#include "placement/parse_placements.h"
#include "plan/plan_many.h"
#include "tests/dtensor/layout_oracle.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;
using Kind = RedistributeStep::Kind;

const CommCause kBatchCause{"test", "", "", false};

SpecPtr spec_on(const DeviceMesh& mesh, const Placements& placements, at::IntArrayRef sizes,
                at::ScalarType dtype = at::kDouble) {
  return Spec::get(mesh, placements, absl::MakeConstSpan(sizes.data(), sizes.size()), dtype);
}

// "all_gather 0.0 2.1 | all_to_all 1.0": the rounds and their steps.
std::string rounds_of(const BatchPlan& batch) {
  std::string text;
  for (const BatchPlan::Round& round : batch.rounds) {
    absl::StrAppend(&text, text.empty() ? "" : " | ", std::string(to_string(round.collective)));
    for (const auto& [plan, step] : round.steps) absl::StrAppend(&text, " ", plan, ".", step);
  }
  return text;
}

// A plan of [8] tensors with these collectives in this order, whether or not it makes sense.
std::shared_ptr<const RedistributePlan> made_of(const DeviceMesh& mesh,
                                                const std::vector<std::pair<Kind, MeshDims>>& steps) {
  auto plan = std::make_shared<RedistributePlan>(
      plan_redistribution(mesh, {{8}, {1}, at::kDouble}, {Shard(0), Shard(0)}, {Replicate(), Replicate()}));
  plan->steps.clear();
  for (const auto& [kind, dims] : steps) {
    RedistributeStep& step = plan->steps.emplace_back();
    step.kind = kind;
    step.dims = dims;
    step.before = step.after = {Replicate(), Replicate()};
    step.bytes = step.is_local() ? 0 : 24;
    step.seconds = 1e-5;
  }
  return plan;
}

TEST_CASE("batch: steps along the same mesh dims share a collective", "[batch]") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"}), other(mesh.world(), {3, 2});
  const auto s = [&](const DeviceMesh& on, const Placements& p) { return spec_on(on, p, {12, 18}); };
  const auto rounds = [](const std::vector<Redistribution>& wanted) { return rounds_of(plan_many(wanted)); };
  const Placements rr = {Replicate(), Replicate()};

  CHECK(rounds({{s(mesh, {Replicate(), Shard(0)}), rr}, {s(mesh, {Replicate(), Shard(1)}), rr}}) ==
        "all_gather 0.0 1.0");
  CHECK(rounds({{s(mesh, {Replicate(), Shard(0)}), rr}, {s(mesh, {Replicate(), Shard(0)}), {Replicate(), Shard(1)}}}) ==
        "all_to_all 0.0 1.0");
  // Not combined: other mesh dims, another mesh, other reductions, a reduction with an exchange.
  CHECK(rounds({{s(mesh, {Shard(0), Replicate()}), rr}, {s(mesh, {Replicate(), Shard(1)}), rr}}) ==
        "all_gather 0.0 | all_gather 1.0");
  CHECK(rounds({{s(mesh, {Replicate(), Shard(0)}), rr}, {s(other, {Replicate(), Shard(0)}), rr}}) ==
        "all_gather 0.0 | all_gather 1.0");
  CHECK(rounds({{s(mesh, {Replicate(), Partial()}), rr},
                {s(mesh, {Replicate(), Partial(ReduceOp::kMax)}), rr},
                {s(mesh, {Replicate(), Partial()}), rr},
                {s(mesh, {Replicate(), Partial()}), {Replicate(), Shard(0)}},
                {s(mesh, {Replicate(), Partial()}), {Replicate(), Shard(1)}},
                {s(mesh, {Replicate(), Shard(1)}), rr}}) ==
        "all_reduce 0.0 2.0 | all_reduce 1.0 | reduce_scatter 3.0 4.0 | all_gather 5.0");
  // No steps, and nothing to send.
  CHECK(rounds({{s(mesh, rr), rr}, {s(mesh, rr), {Shard(0), Replicate()}}}) == "");
  CHECK(rounds({}) == "");
}

TEST_CASE("batch: plans wait for each other without deadlock", "[batch]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const std::pair<Kind, MeshDims> dp{Kind::kAllGather, {0}}, tp{Kind::kAllGather, {1}}, both{Kind::kAllToAll, {0, 1}},
      fill{Kind::kFill, {0}};
  // The second plan's tp step waits until the first has done dp.
  CHECK(rounds_of(batch_plans({made_of(mesh, {dp, tp}), made_of(mesh, {tp})})) ==
        "all_gather 0.0 | all_gather 0.1 1.0");
  CHECK(rounds_of(batch_plans({made_of(mesh, {tp}), made_of(mesh, {dp, both, tp}), made_of(mesh, {both, tp})})) ==
        "all_gather 1.0 | all_to_all 1.1 2.0 | all_gather 0.0 1.2 2.1");
  // Local steps belong to no round.
  CHECK(rounds_of(batch_plans({made_of(mesh, {fill, tp, fill}), made_of(mesh, {tp})})) == "all_gather 0.1 1.0");
  // Each waits for the other: the key with more plans goes first.
  CHECK(rounds_of(batch_plans({made_of(mesh, {dp, tp}), made_of(mesh, {tp, dp}), made_of(mesh, {tp, dp})})) ==
        "all_gather 1.0 2.0 | all_gather 0.0 1.1 2.1 | all_gather 0.1");
  CHECK(rounds_of(batch_plans({made_of(mesh, {dp, tp}), made_of(mesh, {tp, dp})})).size() ==
        std::string("all_gather 0.0 | all_gather 0.1 1.0 | all_gather 1.1").size());
}

TEST_CASE("batch: a round costs the sum of its steps with a single latency", "[batch]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const SpecPtr a = spec_on(mesh, {Shard(0)}, {64, 64}), b = spec_on(mesh, {Shard(0)}, {128, 64}, at::kFloat);
  const auto gathers = plan_many(std::vector<Redistribution>{{a, {Replicate()}}, {b, {Replicate()}}});
  const auto& first = *gathers.plans[0];
  const auto& second = *gathers.plans[1];
  const double latency = first.cost->collective(Collective::kAllGather, GroupExtent::within_node(4), 0);
  REQUIRE(gathers.num_collectives() == 1);
  CHECK(gathers.bytes == first.bytes + second.bytes);
  CHECK(gathers.rounds[0].bytes == gathers.bytes);
  CHECK(gathers.seconds == Approx(first.seconds + second.seconds - latency).epsilon(1e-9));
  CHECK(gathers.peak_bytes == first.peak_bytes + second.peak_bytes);
  CHECK(gathers.explain() ==
        "2 tensors in 1 collective, 49152 B, " + gathers.explain().substr(gathers.explain().find(" B, ") + 4));
  CHECK_THAT(gathers.explain(), Contains("\n  1. all_gather(tp) of 2 tensors, 49152 B, "));

  // One mesh dim after the other: while one tensor is gathered, the other waits or is done.
  const DeviceMesh two(World::abstract(4), {2, 2});
  const SpecPtr c = spec_on(two, {Shard(0), Replicate()}, {64, 64}),
                d = spec_on(two, {Replicate(), Shard(0)}, {64, 64});
  const auto separate =
      plan_many(std::vector<Redistribution>{{c, {Replicate(), Replicate()}}, {d, {Replicate(), Replicate()}}});
  REQUIRE(separate.num_collectives() == 2);
  CHECK(separate.seconds == Approx(separate.plans[0]->seconds + separate.plans[1]->seconds));
  const int64_t whole = 64 * 64 * 8;
  CHECK(separate.peak_bytes == separate.plans[1]->peak_bytes + whole);

  const auto text = [](const std::vector<Redistribution>& wanted) {
    try {
      plan_many(wanted);
    } catch (const c10::Error& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string();
  };
  CHECK_THAT(text({{a, {Replicate()}}, {c, {Replicate(), Replicate()}}}),
             Contains("tensor 0 is in abstract(4, cpu) and tensor 1 in another world"));
}

// Random tensors with random source and target layouts.
struct Batch {
  std::vector<at::Tensor> full;
  std::vector<Redistribution> wanted;
  std::vector<RankTensors> locals;

  Batch(const std::vector<DeviceMesh>& meshes, std::mt19937& random, size_t count, bool even = false) {
    const std::vector<Placement> choices = {Replicate(),        Shard(0),  Shard(1),
                                            StridedShard(0, 2), Partial(), Partial(ReduceOp::kMax)};
    const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    while (full.size() < count) {
      const DeviceMesh& mesh = meshes[draw(static_cast<int64_t>(meshes.size()))];
      Placements from, to;
      for (int64_t m = 0; m < mesh.ndim(); ++m) {
        from.push_back(choices[draw(6)]);
        to.push_back(choices[draw(5)]);
      }
      if (!normalize_placements(from, 2).ok() || !normalize_placements(to, 2).ok()) continue;
      const std::vector<int64_t> sizes =
          even ? std::vector<int64_t>{12, 24} : std::vector<int64_t>{1 + draw(9), draw(9)};
      full.push_back(numbers(sizes, draw(2) == 0 ? at::kDouble : at::kLong));
      wanted.push_back({spec_on(mesh, from, sizes, full.back().scalar_type()), to});
      locals.push_back(locals_of(full.back(), mesh, from));
      for (at::Tensor& t : locals.back()) t = t.to(full.back().scalar_type()).clone();
    }
  }
};

TEST_CASE("batch: values and rounds match the plan for random tensors", "[batch]") {
  const auto world = World::local(6);
  const std::vector<DeviceMesh> meshes = {DeviceMesh(world, {2, 3}), DeviceMesh(world, {6}),
                                          DeviceMesh(world, {3}, {}, {5, 0, 2})};
  std::mt19937 random(23);
  int64_t saved = 0;
  for (int k = 0; k < 60; ++k) {
    const Batch batch(meshes, random, 1 + k % 15);
    const BatchPlan plan = plan_many(batch.wanted);
    CAPTURE(k, plan.explain());
    EventLog log;
    std::vector<RankTensors> out;
    {
      ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
      out = run_plans(plan, batch.locals, kBatchCause);
    }
    REQUIRE(static_cast<int64_t>(log.events.size()) == plan.num_collectives());
    for (size_t r = 0; r < log.events.size(); ++r) {
      CHECK(log.events[r].collective == plan.rounds[r].collective);
      CHECK(log.events[r].bytes == plan.rounds[r].bytes);
      CHECK(log.events[r].received_bytes <= plan.rounds[r].bytes);
      CHECK(log.events[r].received_bytes > 0);
      CHECK(log.events[r].cause.op == "test");
    }
    REQUIRE(out.size() == batch.full.size());
    for (size_t i = 0; i < out.size(); ++i) {
      saved += plan.plans[i]->num_collectives();
      const RankTensors alone = run_plan(*plan.plans[i], batch.locals[i], kBatchCause);
      REQUIRE(out[i].size() == alone.size());
      for (size_t rank = 0; rank < alone.size(); ++rank) {
        CHECK(at::equal(out[i][rank], alone[rank]));
        CHECK(out[i][rank].is_contiguous());
        CHECK(out[i][rank].is_same(batch.locals[i][rank]) == plan.plans[i]->steps.empty());
      }
    }
    saved -= plan.num_collectives();
  }
  CHECK(saved > 50);
}

TEST_CASE("batch: received bytes equal the planned ones for even parts", "[batch]") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  std::mt19937 random(29);
  for (int k = 0; k < 20; ++k) {
    const SpecPtr from = spec_on(mesh, {Shard(0), Replicate()}, {8, 8});
    const BatchPlan plan =
        plan_many(std::vector<Redistribution>{{from, {Shard(1), Replicate()}}, {from, {Replicate(), Replicate()}}});
    EventLog log;
    {
      ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
      const RankTensors locals = locals_of(numbers({8, 8}), mesh, from->placements());
      run_plans(plan, {locals, locals}, kBatchCause);
    }
    REQUIRE(log.events.size() == 1);
    CHECK(log.events[0].collective == Collective::kAllToAll);
    CHECK(log.events[0].mesh_dims == "dim0");
    CHECK(log.events[0].bytes == 4 * 4 * 8 + 4 * 8 * 8);
    CHECK(log.events[0].received_bytes == log.events[0].bytes);
  }
}

TEST_CASE("batch: transfers between the same two meshes share one collective", "[batch]") {
  const auto world = World::local(5);
  const DeviceMesh a(world, {3}, {}, {1, 4, 0}), b(world, {2}, {}, {2, 4});
  const at::Tensor x = numbers({6, 2}), y = numbers({5}, at::kLong);
  const auto plan = [&](const at::Tensor& t) {
    return cached_plan(spec_on(a, {Shard(0)}, t.sizes(), t.scalar_type()), b, {Shard(0)});
  };
  const BatchPlan batch = batch_plans({plan(x), plan(y)});
  CHECK(rounds_of(batch) == "all_to_all 0.0 1.0");
  const auto out = run_plans(batch, {locals_of(x, a, {Shard(0)}), locals_of(y, a, {Shard(0)})}, kBatchCause);
  for (size_t i = 0; i < 2; ++i) {
    const RankTensors expected = locals_of(i == 0 ? x : y, b, {Shard(0)});
    REQUIRE(out[i].size() == 2);
    for (size_t k = 0; k < 2; ++k) CHECK(at::equal(out[i][k], expected[k]));
  }
}

TEST_CASE("batch: the peak counts all tensors of the batch alive at once", "[batch]") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  std::mt19937 random(31);
  for (int k = 0; k < 40; ++k) {
    const Batch batch({mesh}, random, 1 + k % 5, /*even=*/true);
    const BatchPlan plan = plan_many(batch.wanted);
    int64_t inputs = 0;
    for (const Redistribution& r : batch.wanted) inputs += r.from->max_local_bytes();
    // The caller's tensors stay alive, also after their first step.
    MemoryMeter& memory = mesh.world().memory();
    const MemoryHold hold(memory, inputs);
    memory.reset_peak();
    run_plans(plan, batch.locals, kBatchCause);
    CAPTURE(plan.explain());
    CHECK(memory.live_bytes() == inputs);
    CHECK(memory.peak_bytes() >= plan.peak_bytes);
    CHECK(memory.peak_bytes() <= plan.peak_bytes + inputs);
  }
  // All gathered in one step: only inputs and outputs.
  const SpecPtr from = spec_on(mesh, {Shard(0), Replicate()}, {8, 8});
  const BatchPlan plan = plan_many(std::vector<Redistribution>(3, {from, {Replicate(), Replicate()}}));
  const RankTensors locals = locals_of(numbers({8, 8}), mesh, from->placements());
  const MemoryHold hold(mesh.world().memory(), 3 * from->max_local_bytes());
  mesh.world().memory().reset_peak();
  run_plans(plan, {locals, locals, locals}, kBatchCause);
  CHECK(mesh.world().memory().peak_bytes() == plan.peak_bytes);
  CHECK(plan.peak_bytes == 3 * (256 + 512));
}

TEST_CASE("batch: a run without local data reports the same events", "[batch]") {
  const auto events = [](const World& world, const RankTensors& locals) {
    const DeviceMesh mesh(world, {4}, {"tp"});
    const SpecPtr from = spec_on(mesh, {Shard(0)}, {8, 4});
    const auto plan = plan_many(std::vector<Redistribution>{{from, {Shard(1)}}, {from, {Replicate()}}});
    EventLog log;
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
    const auto out = run_plans(plan, {locals, locals}, kBatchCause);
    for (const auto& of_tensor : out) CHECK(of_tensor.size() == mesh.local_ranks().size());
    return log;
  };
  const DeviceMesh real(World::local(4), {4});
  const EventLog log = events(real.world(), locals_of(numbers({8, 4}), real, {Shard(0)}));
  CHECK(log.events.size() == 1);
  CHECK(events(World::abstract(4), {}).text() == log.text());
  const EventLog alone = events(World::fake(4, 2), {numbers({2, 4})});
  CHECK(alone.text() == log.text());
  CHECK(alone.events.at(0).received_bytes == log.events.at(0).received_bytes);
}

TEST_CASE("batch: errors", "[batch]") {
  const DeviceMesh mesh(World::local(2), {2});
  const SpecPtr from = spec_on(mesh, {Shard(0)}, {4});
  const auto plan = plan_many(std::vector<Redistribution>{{from, {Replicate()}}, {from, {Replicate()}}});
  const at::Tensor two = numbers({2});
  CHECK_THROWS_WITH(run_plans(plan, {{two, two}}, kBatchCause),
                    Contains("the local tensors of 1 tensor(s) for 2 plan(s)"));
  CHECK_THROWS_WITH(run_plans(plan, {{two, two}, {two}}, kBatchCause),
                    Contains("1 local tensor(s) for 2 owned rank(s)"));
}

}  // namespace
}  // namespace dtensor
