// Many tensors in one batch of collectives, and tensors that go to another mesh.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/internal/executor.h"
#include "dtensor/redistribute.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "placement/parse_placements.h"
#include "plan/plan_many.h"
#include "tests/dtensor/layout_oracle.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Catch::Contains;
using Kind = RedistributeStep::Kind;

const CommCause kCause{"test", "", "", false};

SpecPtr spec_of(const DeviceMesh& mesh, const Placements& placements, at::IntArrayRef sizes,
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

// A plan of [8] tensors that does these collectives in this order, whether or not it makes sense.
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

TEST_CASE("steps along the same dims meet", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"}), other(mesh.world(), {3, 2});
  const auto s = [&](const DeviceMesh& on, const Placements& p) { return spec_of(on, p, {12, 18}); };
  const auto rounds = [](const std::vector<Redistribution>& wanted) { return rounds_of(plan_many(wanted)); };
  const Placements rr = {Replicate(), Replicate()};

  CHECK(rounds({{s(mesh, {Replicate(), Shard(0)}), rr}, {s(mesh, {Replicate(), Shard(1)}), rr}}) ==
        "all_gather 0.0 1.0");
  CHECK(rounds({{s(mesh, {Replicate(), Shard(0)}), rr}, {s(mesh, {Replicate(), Shard(0)}), {Replicate(), Shard(1)}}}) ==
        "all_to_all 0.0 1.0");
  // Not: other mesh dims, another mesh, other reductions, a reduction beside an exchange.
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
  // Nothing to do, and nothing to send.
  CHECK(rounds({{s(mesh, rr), rr}, {s(mesh, rr), {Shard(0), Replicate()}}}) == "");
  CHECK(rounds({}) == "");
}

TEST_CASE("plans wait for each other, but not for ever", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const std::pair<Kind, MeshDims> dp{Kind::kAllGather, {0}}, tp{Kind::kAllGather, {1}}, both{Kind::kAllToAll, {0, 1}},
      fill{Kind::kFill, {0}};
  // The second one's tp waits until the first one has done dp.
  CHECK(rounds_of(batch_plans({made_of(mesh, {dp, tp}), made_of(mesh, {tp})})) ==
        "all_gather 0.0 | all_gather 0.1 1.0");
  CHECK(rounds_of(batch_plans({made_of(mesh, {tp}), made_of(mesh, {dp, both, tp}), made_of(mesh, {both, tp})})) ==
        "all_gather 1.0 | all_to_all 1.1 2.0 | all_gather 0.0 1.2 2.1");
  // Local steps are in no round.
  CHECK(rounds_of(batch_plans({made_of(mesh, {fill, tp, fill}), made_of(mesh, {tp})})) == "all_gather 0.1 1.0");
  // Each waits for the other: those who are more go first.
  CHECK(rounds_of(batch_plans({made_of(mesh, {dp, tp}), made_of(mesh, {tp, dp}), made_of(mesh, {tp, dp})})) ==
        "all_gather 1.0 2.0 | all_gather 0.0 1.1 2.1 | all_gather 0.1");
  CHECK(rounds_of(batch_plans({made_of(mesh, {dp, tp}), made_of(mesh, {tp, dp})})).size() ==
        std::string("all_gather 0.0 | all_gather 0.1 1.0 | all_gather 1.1").size());
}

TEST_CASE("a round costs what its steps cost, with one latency", "[redistribute_many]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const SpecPtr a = spec_of(mesh, {Shard(0)}, {64, 64}), b = spec_of(mesh, {Shard(0)}, {128, 64}, at::kFloat);
  const auto gathers = plan_many(std::vector<Redistribution>{{a, {Replicate()}}, {b, {Replicate()}}});
  const auto& first = *gathers.plans[0];
  const auto& second = *gathers.plans[1];
  const double latency = first.cost->collective(Collective::kAllGather, 4, false, 0);
  REQUIRE(gathers.num_collectives() == 1);
  CHECK(gathers.bytes == first.bytes + second.bytes);
  CHECK(gathers.rounds[0].bytes == gathers.bytes);
  CHECK(gathers.seconds == Approx(first.seconds + second.seconds - latency).epsilon(1e-9));
  CHECK(gathers.peak_bytes == first.peak_bytes + second.peak_bytes);
  CHECK(gathers.explain() ==
        "2 tensors in 1 collective, 49152 B, " + gathers.explain().substr(gathers.explain().find(" B, ") + 4));
  CHECK_THAT(gathers.explain(), Contains("\n  1. all_gather(tp) of 2 tensors, 49152 B, "));

  // A mesh dim after the other: while one is gathered, the other waits or is done.
  const DeviceMesh two(World::abstract(4), {2, 2});
  const SpecPtr c = spec_of(two, {Shard(0), Replicate()}, {64, 64}),
                d = spec_of(two, {Replicate(), Shard(0)}, {64, 64});
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

// Random tensors with random layouts, and where they go.
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
      wanted.push_back({spec_of(mesh, from, sizes, full.back().scalar_type()), to});
      locals.push_back(locals_of(full.back(), mesh, from));
      for (at::Tensor& t : locals.back()) t = t.to(full.back().scalar_type()).clone();
    }
  }
};

TEST_CASE("a batch has the values of its tensors one by one, in the planned rounds", "[redistribute_many]") {
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
      out = run_plans(plan, batch.locals, kCause);
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
      const RankTensors alone = run_plan(*plan.plans[i], batch.locals[i], kCause);
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

TEST_CASE("what arrives is what was planned where all parts are even", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  std::mt19937 random(29);
  for (int k = 0; k < 20; ++k) {
    const SpecPtr from = spec_of(mesh, {Shard(0), Replicate()}, {8, 8});
    const BatchPlan plan =
        plan_many(std::vector<Redistribution>{{from, {Shard(1), Replicate()}}, {from, {Replicate(), Replicate()}}});
    EventLog log;
    {
      ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
      const RankTensors locals = locals_of(numbers({8, 8}), mesh, from->placements());
      run_plans(plan, {locals, locals}, kCause);
    }
    REQUIRE(log.events.size() == 1);
    CHECK(log.events[0].collective == Collective::kAllToAll);
    CHECK(log.events[0].mesh_dims == "dim0");
    CHECK(log.events[0].bytes == 4 * 4 * 8 + 4 * 8 * 8);
    CHECK(log.events[0].received_bytes == log.events[0].bytes);
  }
}

TEST_CASE("transfers between the same two meshes are one", "[redistribute_many]") {
  const auto world = World::local(5);
  const DeviceMesh a(world, {3}, {}, {1, 4, 0}), b(world, {2}, {}, {2, 4});
  const at::Tensor x = numbers({6, 2}), y = numbers({5}, at::kLong);
  const auto plan = [&](const at::Tensor& t) {
    return cached_plan(spec_of(a, {Shard(0)}, t.sizes(), t.scalar_type()), b, {Shard(0)});
  };
  const BatchPlan batch = batch_plans({plan(x), plan(y)});
  CHECK(rounds_of(batch) == "all_to_all 0.0 1.0");
  const auto out = run_plans(batch, {locals_of(x, a, {Shard(0)}), locals_of(y, a, {Shard(0)})}, kCause);
  for (size_t i = 0; i < 2; ++i) {
    const RankTensors expected = locals_of(i == 0 ? x : y, b, {Shard(0)});
    REQUIRE(out[i].size() == 2);
    for (size_t k = 0; k < 2; ++k) CHECK(at::equal(out[i][k], expected[k]));
  }
}

TEST_CASE("a batch counts into the peak what of it is alive at once", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  std::mt19937 random(31);
  for (int k = 0; k < 40; ++k) {
    const Batch batch({mesh}, random, 1 + k % 5, /*even=*/true);
    const BatchPlan plan = plan_many(batch.wanted);
    int64_t inputs = 0;
    for (const Redistribution& r : batch.wanted) inputs += r.from->max_local_bytes();
    // The callers' tensors stay alive, also after their first step.
    MemoryMeter& memory = mesh.world().memory();
    const MemoryHold hold(memory, inputs);
    memory.reset_peak();
    run_plans(plan, batch.locals, kCause);
    CAPTURE(plan.explain());
    CHECK(memory.live_bytes() == inputs);
    CHECK(memory.peak_bytes() >= plan.peak_bytes);
    CHECK(memory.peak_bytes() <= plan.peak_bytes + inputs);
  }
  // All gathered in one step: inputs and outputs, no more.
  const SpecPtr from = spec_of(mesh, {Shard(0), Replicate()}, {8, 8});
  const BatchPlan plan = plan_many(std::vector<Redistribution>(3, {from, {Replicate(), Replicate()}}));
  const RankTensors locals = locals_of(numbers({8, 8}), mesh, from->placements());
  const MemoryHold hold(mesh.world().memory(), 3 * from->max_local_bytes());
  mesh.world().memory().reset_peak();
  run_plans(plan, {locals, locals, locals}, kCause);
  CHECK(mesh.world().memory().peak_bytes() == plan.peak_bytes);
  CHECK(plan.peak_bytes == 3 * (256 + 512));
}

TEST_CASE("a batch where nobody has data reports the same", "[redistribute_many]") {
  const auto events = [](const World& world, const RankTensors& locals) {
    const DeviceMesh mesh(world, {4}, {"tp"});
    const SpecPtr from = spec_of(mesh, {Shard(0)}, {8, 4});
    const auto plan = plan_many(std::vector<Redistribution>{{from, {Shard(1)}}, {from, {Replicate()}}});
    EventLog log;
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
    const auto out = run_plans(plan, {locals, locals}, kCause);
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

TEST_CASE("errors of a batch", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2});
  const SpecPtr from = spec_of(mesh, {Shard(0)}, {4});
  const auto plan = plan_many(std::vector<Redistribution>{{from, {Replicate()}}, {from, {Replicate()}}});
  const at::Tensor two = numbers({2});
  CHECK_THROWS_WITH(run_plans(plan, {{two, two}}, kCause), Contains("the local tensors of 1 tensor(s) for 2 plan(s)"));
  CHECK_THROWS_WITH(run_plans(plan, {{two, two}, {two}}, kCause), Contains("1 local tensor(s) for 2 owned rank(s)"));
}

// --- The public functions. ---

at::Tensor distributed(const at::Tensor& t, const DeviceMesh& mesh, const Placements& placements,
                       bool requires_grad = false) {
  return distribute_tensor(t.clone().set_requires_grad(requires_grad), mesh, placements);
}

TEST_CASE("redistribute_many gives what redistribute gives, in one collective", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor a = numbers({6, 5}), b = numbers({3, 8}, at::kLong), c = numbers({4});
  const std::vector<at::Tensor> x = {distributed(a, mesh, {Shard(0)}), distributed(b, mesh, {Shard(1)}),
                                     distributed(c, mesh, {Replicate()})};
  CommDebugMode comm;
  const auto y = redistribute_many(x, {{Replicate()}});
  CHECK(comm.total() == 1);
  CHECK(comm.count(Collective::kAllGather) == 1);
  const CommEvent event = comm.events().at(0);
  CHECK(event.cause.op == "redistribute_many");
  CHECK_FALSE(event.cause.implicit);
  CHECK(to_string(*event.layout_change, event.more_tensors) == "f64[6, 5](S(0)) -> (R) @ mesh(tp=4) and 1 more");
  REQUIRE(y.size() == 3);
  CHECK(at::equal(full_tensor(y[0]), a));
  CHECK(at::equal(full_tensor(y[1]), b));
  CHECK(y[2].is_same(x[2]));
  for (const auto& t : y) CHECK(DTensor(t).placements() == Placements{Replicate()});

  comm.reset();
  const auto z = redistribute_many(x, {{Shard(1)}, {Replicate()}, {Shard(0)}});
  CHECK(comm.total() == 1);
  CHECK(at::equal(full_tensor(z[0]), a));
  CHECK(at::equal(full_tensor(z[1]), b));
  CHECK(at::equal(full_tensor(z[2]), c));
  CHECK(DTensor(z[0]).placements() == Placements{Shard(1)});
  CHECK(DTensor(z[2]).placements() == Placements{Shard(0)});
  CHECK(redistribute_many({}, {{Replicate()}}).empty());
  CHECK(redistribute_many({}, {}).empty());
}

TEST_CASE("a batch of another name only is a batch of copies", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {1, 2});
  const at::Tensor x = distributed(numbers({4}), mesh, {Shard(0), Shard(0)});
  CommDebugMode comm;
  const auto y = redistribute_many({x}, {{Replicate(), Shard(0)}});
  CHECK(comm.total() == 0);
  CHECK(DTensor(y[0]).placements() == Placements{Replicate(), Shard(0)});
  for (int64_t r = 0; r < 2; ++r) CHECK_FALSE(DTensor(y[0]).local(r).is_alias_of(DTensor(x).local(r)));
}

TEST_CASE("gradients of a batch come back in one collective", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor a = numbers({6, 5}), b = numbers({3, 8}), c = numbers({2, 4}), d = numbers({4}, at::kLong);
  const at::Tensor xa = distributed(a, mesh, {Shard(0)}, true), xb = distributed(b, mesh, {Shard(1)}, true);
  const at::Tensor xc = distributed(c, mesh, {Shard(0)}), xd = distributed(d, mesh, {Shard(0)});
  const auto y = redistribute_many({xa, xb, xc, xd}, {{Shard(1)}, {Shard(0)}, {Replicate()}, {Replicate()}});
  CHECK(y[0].requires_grad());
  CHECK(y[1].requires_grad());
  CHECK_FALSE(y[2].requires_grad());
  CHECK_FALSE(y[3].requires_grad());
  // Weights that differ between elements.
  const at::Tensor wa = distribute_tensor(numbers({6, 5}), mesh, {Shard(1)}),
                   wb = distribute_tensor(numbers({3, 8}) * 2, mesh, {Shard(0)});
  const at::Tensor loss = full_tensor((y[0] * wa).sum()) + full_tensor((y[1] * wb).sum());
  CommDebugMode comm;
  loss.backward();
  CHECK(at::equal(full_tensor(xa.grad()), numbers({6, 5})));
  CHECK(at::equal(full_tensor(xb.grad()), numbers({3, 8}) * 2));
  CHECK(DTensor(xa.grad()).placements() == Placements{Shard(0)});
  CHECK(DTensor(xb.grad()).placements() == Placements{Shard(1)});
  int64_t batched = 0;
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op != "redistribute_many") continue;
    ++batched;
    CHECK(e.backward);
    CHECK(e.collective == Collective::kAllToAll);
  }
  CHECK(batched == 1);
}

TEST_CASE("only the gradients that there are come back", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const at::Tensor x = distributed(numbers({4, 2}), mesh, {Shard(0)}, true),
                   unused = distributed(numbers({2, 6}), mesh, {Shard(1)}, true);
  const auto y = redistribute_many({x, unused}, {{Shard(1)}, {Shard(0)}});
  CommDebugMode comm;
  (y[0] * y[0]).sum().backward();
  CHECK(at::equal(full_tensor(x.grad()), numbers({4, 2}) * 2));
  CHECK_FALSE(unused.grad().defined());
  for (const CommEvent& e : comm.events()) {
    if (e.cause.op == "redistribute_many") CHECK(e.bytes == 2 * 1 * 8);
  }
}

TEST_CASE("the gradient of a partial sum in a batch is whole on every rank", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const at::Tensor x = distributed(numbers({4, 2}), mesh, {Shard(1)}, true);
  const at::Tensor partial = x.sum(1);
  REQUIRE(DTensor(partial).placements() == Placements{Partial()});
  const auto y = redistribute_many({partial, partial}, {{Shard(0)}, {Replicate()}});
  (full_tensor(y[0]).sum() + full_tensor(y[1] * 3).sum()).backward();
  CHECK(at::equal(full_tensor(x.grad()), at::ones_like(numbers({4, 2})) * 4));
}

TEST_CASE("a batch can be differentiated twice", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const at::Tensor x = distributed(numbers({4, 2}), mesh, {Shard(0)}, true);
  const auto y = redistribute_many({x}, {{Shard(1)}});
  const at::Tensor loss = full_tensor((y[0] * y[0] * y[0]).sum());
  const auto first = torch::autograd::grad({loss}, {x}, {}, std::nullopt, /*create_graph=*/true);
  REQUIRE(first[0].requires_grad());
  full_tensor(first[0].sum()).backward();
  CHECK(at::equal(full_tensor(x.grad()), numbers({4, 2}) * 6));
}

TEST_CASE("errors of redistribute_many", "[redistribute_many]") {
  const DeviceMesh mesh(World::local(2), {2}), elsewhere(World::local(2), {2});
  const at::Tensor x = distributed(numbers({4}), mesh, {Shard(0)}),
                   y = distributed(numbers({4}), elsewhere, {Shard(0)});
  CHECK_THROWS_WITH(
      redistribute_many({x, x, x}, {{Replicate()}, {Replicate()}}),
      Contains("[redistribute_many] 2 lists of placements for 3 tensors: give one per tensor, or one for all"));
  CHECK_THROWS_WITH(redistribute_many({x, numbers({4})}, {{Replicate()}}),
                    Contains("[redistribute_many] the tensor of shape [4] is not distributed"));
  CHECK_THROWS_WITH(redistribute_many({x}, {{Replicate(), Replicate()}}), Contains("[redistribute_many] `placements`"));
  CHECK_THROWS_WITH(redistribute_many({x}, {{Shard(1)}}), Contains("[redistribute_many]"));
  CHECK_THROWS_WITH(redistribute_many({x, y}, {{Replicate()}}),
                    Contains("only tensors of one world can travel together"));
}

TEST_CASE("a tensor goes to another mesh, and its gradient comes back", "[redistribute_many]") {
  const auto world = World::local(6);
  const std::vector<DeviceMesh> meshes = {DeviceMesh(world, {2, 2}), DeviceMesh(world, {3}, {}, {5, 4, 1}),
                                          DeviceMesh(world, {2}, {}, {4, 5}), DeviceMesh(world, {6})};
  const at::Tensor full = numbers({7, 4}), weight = numbers({7, 4}) + 3;
  for (const DeviceMesh& a : meshes) {
    for (const DeviceMesh& b : meshes) {
      if (a == b) continue;
      for (const Placement& from : {Shard(0), Shard(1), Replicate()}) {
        for (const Placement& to : {Shard(0), Replicate()}) {
          const Placements on_a(a.ndim(), from), on_b(b.ndim(), to);
          CAPTURE(a.ranks(), b.ranks(), to_string(on_a), to_string(on_b));
          const at::Tensor x = distributed(full, a, on_a, true);
          const at::Tensor y = redistribute(x, b, on_b);
          CHECK(DTensor(y).mesh() == b);
          CHECK(DTensor(y).placements() == on_b);
          CHECK(at::equal(full_tensor(y), full));
          full_tensor((y * distribute_tensor(weight, b, on_b)).sum()).backward();
          CHECK(DTensor(x.grad()).mesh() == a);
          CHECK(DTensor(x.grad()).placements() == on_a);
          CHECK(at::equal(full_tensor(x.grad()), weight));
        }
      }
    }
  }
}

TEST_CASE("what is partial is reduced before it leaves its mesh", "[redistribute_many]") {
  const auto world = World::local(4);
  const DeviceMesh a(world, {2}), b(world, {2}, {}, {3, 2});
  const at::Tensor x = distributed(numbers({4, 2}), a, {Shard(1)}, true);
  const at::Tensor y = redistribute(x.sum(1), b, {Shard(0)});
  CHECK(at::equal(full_tensor(y), numbers({4, 2}).sum(1)));
  full_tensor(y).sum().backward();
  CHECK(at::equal(full_tensor(x.grad()), at::ones_like(numbers({4, 2}))));
}

TEST_CASE("to the mesh that a tensor is on, and to one with the same parts", "[redistribute_many]") {
  const auto world = World::local(4);
  const DeviceMesh a(world, {4}), b(world, {2, 2});
  const at::Tensor x = distributed(numbers({8}), a, {Shard(0)});
  CHECK(redistribute(x, a, {Shard(0)}).is_same(x));
  CHECK(DTensor(redistribute(x, a, {Replicate()})).placements() == Placements{Replicate()});
  CommDebugMode comm;
  const at::Tensor y = redistribute(x, b, {Shard(0), Shard(0)});
  CHECK(comm.total() == 0);
  CHECK(at::equal(full_tensor(y), numbers({8})));
  for (int64_t r = 0; r < 4; ++r) CHECK_FALSE(DTensor(y).local(r).is_alias_of(DTensor(x).local(r)));
}

TEST_CASE("a process without a rank on the new mesh has no parts of it", "[redistribute_many]") {
  const auto world = World::fake(4, 0);
  const DeviceMesh a(world, {2}), b(world, {2}, {}, {2, 3});
  const at::Tensor x =
      from_local({numbers({2})}, a, {Shard(0)}, {.shape = std::vector<int64_t>{4}, .grad_placements = {}});
  const at::Tensor y = redistribute(x, b, {Shard(0)});
  CHECK(to_local(y).empty());
  CHECK(y.sizes() == at::IntArrayRef{4});
  const at::Tensor back = redistribute(y, a, {Shard(0)});
  REQUIRE(to_local(back).size() == 1);
  CHECK(to_local(back)[0].sizes() == at::IntArrayRef{2});

  const DeviceMesh c(World::abstract(4), {2}), d(c.world(), {2}, {}, {2, 3});
  CHECK(DTensor(redistribute(zeros({4}, c, {Shard(0)}), d, {Shard(0)})).mesh() == d);
}

TEST_CASE("errors of redistribute to a mesh", "[redistribute_many]") {
  const auto world = World::local(2);
  const DeviceMesh mesh(world, {2}), elsewhere(World::local(2), {2});
  const at::Tensor x = distributed(numbers({4}), mesh, {Shard(0)});
  CHECK_THROWS_WITH(redistribute(numbers({4}), mesh, {Shard(0)}),
                    Contains("[redistribute] the tensor of shape [4] is not distributed"));
  CHECK_THROWS_WITH(redistribute(x, DeviceMesh(), {Shard(0)}), Contains("[redistribute] no mesh"));
  CHECK_THROWS_WITH(redistribute(x, elsewhere, {Shard(0)}), Contains("another world"));
  CHECK_THROWS_WITH(redistribute(x, DeviceMesh(world, {1}), {Shard(0), Shard(0)}),
                    Contains("[redistribute] `placements`"));
}

}  // namespace
}  // namespace dtensor
