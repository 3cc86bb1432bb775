// Plans between meshes, to and from boxes, and in several rounds.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "comm/scope.h"
#include "dtensor/redistribution/internal/executor.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "placement/parse_placements.h"
#include "plan/redistribute_planner.h"
#include "plan/transfer/schedule.h"
#include "tests/dtensor/layout_oracle.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;

const CommCause kTransferCause{"aten::mm", "mat2", "layers.0", true};

TensorMeta meta_of_sizes(at::IntArrayRef sizes, at::ScalarType dtype = at::kDouble) {
  const Shape shape(sizes.begin(), sizes.end());
  return {shape, row_major_strides(shape), dtype};
}

at::Tensor box_of(at::Tensor t, const RankBox& box) {
  for (size_t d = 0; d < box.sizes.size(); ++d) t = t.narrow(static_cast<int64_t>(d), box.offsets[d], box.sizes[d]);
  return t.contiguous();
}

// The local tensors of `full` that every rank of the world should have, Partial as Replicate unless `addends`.
RankPieces pieces_of(const at::Tensor& full, const Layout& layout, bool addends) {
  RankPieces pieces(layout.world().size());
  if (layout.is_boxes()) {
    for (const RankBox& box : layout.boxes()) pieces[box.rank].push_back(box_of(full, box));
    return pieces;
  }
  const DeviceMesh& mesh = layout.mesh();
  const Placements& placements = layout.placements();
  for (int64_t rank : mesh.ranks()) {
    pieces[rank].push_back(
        local_of(full, mesh, addends ? placements : without_partials(placements), mesh.coordinate(rank)));
  }
  return pieces;
}

EventLog run_logged(const RedistributePlan& plan, RankPieces& pieces) {
  EventLog log;
  ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&log); });
  pieces = run_transfer(plan, std::move(pieces), kTransferCause);
  return log;
}

// The fault of the redistribution from `from` to `to`; "" if none. `to` has no Partial.
std::string check_transfer(const at::Tensor& full, const RedistributePlan& plan) {
  const RankPieces source = pieces_of(full, plan.from, /*addends=*/true);
  const RankPieces expected = pieces_of(full, plan.to, /*addends=*/false);
  RankPieces copies = source;
  for (auto& of_rank : copies) {
    for (at::Tensor& t : of_rank) t = t.clone();
  }
  for (int run = 0; run < 2; ++run) {  // the second one with the schedule of the first
    RankPieces pieces = source;
    const EventLog log = run_logged(plan, pieces);
    int64_t events = 0;
    int64_t bytes = 0;
    for (const RedistributeStep& step : plan.steps) events += step.is_local() ? 0 : step.chunks;
    if (static_cast<int64_t>(log.events.size()) != events)
      return absl::StrCat(log.events.size(), " events, planned were ", events);
    for (const CommEvent& e : log.events) {
      if (to_string(e.layout_change->from()) != plan.from.to_string() ||
          to_string(e.layout_change->to()) != plan.to.to_string()) {
        return absl::StrCat("an event of ", to_string(*e.layout_change));
      }
      bytes += e.bytes;
      const bool in_rounds =
          events != plan.num_collectives();  // then a different rank may receive most in each of them
      if (!in_rounds && e.received_bytes != e.bytes)
        return absl::StrCat(e.received_bytes, " bytes arrived, planned were ", e.bytes);
    }
    if (bytes != plan.bytes) return absl::StrCat("events of ", bytes, " bytes, planned were ", plan.bytes);
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      if (pieces[rank].size() != expected[rank].size())
        return absl::StrCat("rank ", rank, " has ", pieces[rank].size(), " tensors");
      for (size_t k = 0; k < expected[rank].size(); ++k) {
        const at::Tensor& t = pieces[rank][k];
        if (t.sizes() != expected[rank][k].sizes() || !at::equal(t, expected[rank][k])) {
          return absl::StrCat("rank ", rank, ": wrong value of tensor ", k);
        }
        if (!t.is_contiguous()) return "not contiguous";
        for (const auto& of_rank : source) {
          for (const at::Tensor& s : of_rank) {
            if (!plan.steps.empty() && t.is_alias_of(s)) return "aliases an input";
          }
        }
      }
    }
    for (size_t rank = 0; rank < source.size(); ++rank) {
      for (size_t k = 0; k < source[rank].size(); ++k) {
        if (!at::equal(source[rank][k], copies[rank][k])) return "an input was changed";
      }
    }
  }
  return "";
}

void check(const at::Tensor& full, const RedistributePlan& plan) {
  std::string wrong;
  try {
    wrong = check_transfer(full, plan);
  } catch (const std::exception& e) {
    wrong = e.what();
  }
  if (!wrong.empty()) FAIL_CHECK(plan.from.to_string() << " of ranks, " << plan.to_string() << ": " << wrong);
}

std::vector<Layout> mesh_layouts(const DeviceMesh& mesh, const std::vector<Placement>& choices) {
  std::vector<Placements> all(1);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    std::vector<Placements> longer;
    for (const Placements& prefix : all) {
      for (const Placement& p : choices) {
        longer.push_back(prefix);
        longer.back().push_back(p);
      }
    }
    all = longer;
  }
  std::vector<Layout> layouts;
  for (const Placements& p : all) layouts.emplace_back(mesh, p);
  return layouts;
}

// Meshes over the same ranks in another order or shape, over some of them, over others, over one.
std::vector<DeviceMesh> meshes_of(const World& world) {
  return {DeviceMesh(world, {6}),
          DeviceMesh(world, {2, 3}),
          DeviceMesh(world, {3, 2}, {}, {4, 1, 5, 0, 2, 3}),
          DeviceMesh(world, {3}),
          DeviceMesh(world, {3}, {}, {5, 3, 4}),
          DeviceMesh(world, {2, 2}, {}, {2, 4, 1, 3}),
          DeviceMesh(world, {1}, {}, {5})};
}

TEST_CASE("transfer: every pair of layouts on two meshes, or every fourth", "[executor]") {
  const auto world = World::local(6);
  const std::vector<Placement> from_choices = {Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial()};
  const std::vector<Placement> to_choices = {Replicate(), Shard(0), Shard(1), StridedShard(1, 2)};
  int pair = 0;
  for (const auto& sizes : {std::vector<int64_t>{7, 5}, {2, 12}, {0, 3}}) {
    const at::Tensor full = numbers(sizes);
    for (const DeviceMesh& a : meshes_of(world)) {
      for (const DeviceMesh& b : meshes_of(world)) {
        if (a == b) continue;
        for (const Layout& from : mesh_layouts(a, from_choices)) {
          for (const Layout& to : mesh_layouts(b, to_choices)) {
            if (testing::long_tests() || pair++ % 4 == 0) check(full, plan_transfer(meta_of_sizes(sizes), from, to));
          }
        }
      }
    }
  }
}

// Cuts [offset, offset + size) of every dim at random and assigns the parts to ranks.
std::vector<RankBox> random_boxes(std::mt19937& random, const Shape& sizes, int64_t ranks) {
  std::vector<RankBox> boxes = {{0, Shape(sizes.size(), 0), sizes}};
  for (int cut = 0; cut < 5 && !sizes.empty(); ++cut) {
    const size_t i = random() % boxes.size(), d = random() % sizes.size();
    RankBox rest = boxes[i];
    const int64_t at = static_cast<int64_t>(random() % (rest.sizes[d] + 1));
    boxes[i].sizes[d] = at;
    rest.offsets[d] += at;
    rest.sizes[d] -= at;
    boxes.push_back(rest);
  }
  for (RankBox& box : boxes) box.rank = static_cast<int64_t>(random() % ranks);
  return boxes;
}

TEST_CASE("transfer: from and to boxes", "[executor]") {
  const auto world = World::local(6);
  std::mt19937 random(11);
  for (const auto& sizes : {std::vector<int64_t>{7, 5}, {3, 4, 2}, {9}, {}, {0, 4}}) {
    const at::Tensor full = numbers(sizes);
    const TensorMeta meta = meta_of_sizes(sizes);
    std::vector<Placement> choices = {Replicate(), Partial()};
    if (!sizes.empty()) choices.push_back(Shard(0));
    for (int k = 0; k < 10; ++k) {
      const Layout a(world, random_boxes(random, meta.sizes, 6)), b(world, random_boxes(random, meta.sizes, 6));
      check(full, plan_transfer(meta, a, b));
      for (const DeviceMesh& mesh : meshes_of(world)) {
        for (const Layout& on_mesh : mesh_layouts(mesh, choices)) {
          check(full, plan_transfer(meta, on_mesh, a));
          bool partial = false;
          for (const Placement& p : on_mesh.placements()) partial |= p.is_partial();
          if (!partial) check(full, plan_transfer(meta, a, on_mesh));
        }
      }
    }
  }
}

TEST_CASE("transfer: local tensors are in the order of each mesh", "[executor]") {
  const auto world = World::local(4);
  const DeviceMesh a(world, {2}, {}, {3, 1}), b(world, {3}, {}, {1, 2, 0});
  const at::Tensor full = numbers({6});
  const auto plan = plan_transfer(meta_of_sizes({6}), Layout(a, {Shard(0)}), Layout(b, {Shard(0)}));
  const RankTensors out = run_plan(plan, locals_of(full, a, {Shard(0)}), kTransferCause);
  const RankTensors expected = locals_of(full, b, {Shard(0)});
  REQUIRE(out.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(at::equal(out[i], expected[i]));
}

TEST_CASE("transfer: unchanged parts are returned themselves", "[executor]") {
  const auto world = World::local(4);
  const DeviceMesh a(world, {4}), b(world, {2, 2});
  const at::Tensor full = numbers({8});
  const RankTensors locals = locals_of(full, a, {Shard(0)});
  const auto plan = plan_transfer(meta_of_sizes({8}), Layout(a, {Shard(0)}), Layout(b, {Shard(0), Shard(0)}));
  REQUIRE(plan.steps.empty());
  const RankTensors same = run_plan(plan, locals, kTransferCause);
  for (size_t i = 0; i < 4; ++i) CHECK(same[i].is_same(locals[i]));
}

TEST_CASE("transfer: processes that own few ranks, or none", "[executor]") {
  const at::Tensor full = numbers({6, 4});
  const auto layouts = [&](const World& world) {
    const DeviceMesh a(world, {2}, {}, {0, 3}), b(world, {3}, {}, {3, 2, 1});
    return std::pair(Layout(a, {Shard(0)}), Layout(b, {Shard(1)}));
  };
  const auto real = layouts(World::local(4));
  const auto plan = plan_transfer(meta_of_sizes({6, 4}), real.first, real.second);
  RankPieces pieces = pieces_of(full, real.first, false);
  const EventLog log = run_logged(plan, pieces);
  REQUIRE(log.events.size() == 1);
  CHECK(log.events[0].mesh_dims == "transfer");
  CHECK(log.events[0].group_size == 4);
  CHECK(log.events[0].collective == Collective::kAllToAll);

  const World nobody = World::abstract(4);
  const auto [from, to] = layouts(nobody);
  const auto dry = plan_transfer(meta_of_sizes({6, 4}), from, to, {plan.cost, {}});
  CHECK(dry.to_string() == plan.to_string());
  RankPieces none;
  const EventLog dry_log = run_logged(dry, none);
  CHECK(none.empty());
  CHECK(dry_log.text() == log.text());
  CHECK(dry_log.events.at(0).received_bytes == -1);

  for (int64_t rank = 0; rank < 4; ++rank) {
    const auto [from, to] = layouts(World::fake(4, rank));
    const auto alone = plan_transfer(meta_of_sizes({6, 4}), from, to, {plan.cost, {}});
    RankPieces mine = {pieces_of(full, real.first, false)[rank]};
    const EventLog own = run_logged(alone, mine);
    CHECK(own.text() == log.text());
    const RankPieces expected = pieces_of(full, real.second, false);
    REQUIRE(mine.size() == 1);
    REQUIRE(mine[0].size() == expected[rank].size());
    int64_t zeros = 0;  // stands for data of other ranks
    for (const at::Tensor& t : mine[0]) {
      CHECK(t.sizes() == expected[rank][0].sizes());
      zeros += t.eq(0).sum().item<int64_t>();
    }
    CHECK(own.events.at(0).received_bytes == zeros * 8);
  }
}

TEST_CASE("transfer: a process without ranks in the layouts passes no tensors", "[executor]") {
  const auto world = World::local(3);
  const DeviceMesh a(world, {2}), b(world, {1}, {}, {2});
  const auto plan = plan_transfer(meta_of_sizes({4}), Layout(a, {Shard(0)}), Layout(b, {Replicate()}));
  const at::Tensor two = numbers({2});
  CHECK_THROWS_WITH(run_transfer(plan, {{two}, {two}, {two}}, kTransferCause),
                    Contains("1 tensor(s) of rank 2, which has no place in S(0) @ mesh(dim0=2)"));
  CHECK_THROWS_WITH(run_transfer(plan, {{two}, {}, {}}, kTransferCause), Contains("rank 1 passes {}, but S(0)"));
  CHECK_THROWS_WITH(run_transfer(plan, {{two}, {two}}, kTransferCause),
                    Contains("2 local tensor(s) for 3 owned rank(s)"));
}

// `plan` with its collectives in this many rounds.
RedistributePlan in_rounds(RedistributePlan plan, int64_t chunks) {
  plan.schedule = make_schedule_slot();
  for (RedistributeStep& step : plan.steps) {
    if (!step.is_local() && step.kind != RedistributeStep::Kind::kAllReduce) step.chunks = chunks;
  }
  return plan;
}

TEST_CASE("executor: steps in several rounds", "[executor]") {
  const auto world = World::local(6);
  const std::vector<Placement> from_choices = {Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial()};
  for (const auto& sizes : {std::vector<int64_t>{7, 5}, {4, 3, 2}}) {
    const at::Tensor full = numbers(sizes);
    const TensorMeta meta = meta_of_sizes(sizes);
    for (int64_t chunks : {2, 3, 7}) {
      const DeviceMesh a(world, {2, 3}), b(world, {3}, {}, {4, 0, 1});
      for (const Layout& from : mesh_layouts(a, from_choices)) {
        for (const Layout& to : mesh_layouts(a, {Replicate(), Shard(0), Shard(1)})) {
          check(full, in_rounds(plan_redistribution(a, meta, from.placements(), to.placements()), chunks));
        }
        check(full, in_rounds(plan_transfer(meta, from, Layout(b, {Shard(1)})), chunks));
      }
    }
  }
}

// Each rank receives a block of 4 rows and 8 columns; in 8 rounds that is a column each.
TEST_CASE("executor: each round moves its share of the bytes", "[executor]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const TensorMeta meta = meta_of_sizes({8, 16}, at::kFloat);
  const at::Tensor full = numbers({8, 16}, at::kFloat);
  const auto plan = in_rounds(plan_redistribution(mesh, meta, {Shard(0)}, {Shard(1)}), 8);
  RankPieces pieces = pieces_of(full, plan.from, false);
  const EventLog log = run_logged(plan, pieces);
  REQUIRE(log.events.size() == 8);
  for (const CommEvent& e : log.events) {
    CHECK(e.received_bytes == 4 * 4);
    CHECK(e.bytes == 4 * 4);
  }
}

// Bytes of live CPU tensors, and their peak.
struct Allocations : c10::MemoryReportingInfoBase {
  int64_t alive = 0, peak = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    alive += size;
    peak = std::max(peak, alive);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

// The peak of a call's allocations.
template <typename Fn>
int64_t peak_of(Fn run) {
  const auto allocations = std::make_shared<Allocations>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
  run();
  return allocations->peak;
}

int64_t bytes_of(const RankPieces& pieces) {
  int64_t bytes = 0;
  for (const auto& of_rank : pieces) {
    for (const at::Tensor& t : of_rank) bytes += static_cast<int64_t>(t.nbytes());
  }
  return bytes;
}

TEST_CASE("executor: a step within a process allocates only its outputs", "[executor]") {
  const auto world = World::local(4);
  const DeviceMesh mesh(world, {2, 2}), row(world, {4});
  const TensorMeta meta = meta_of_sizes({96, 80});
  const at::Tensor full = numbers({96, 80});
  std::vector<RedistributePlan> plans;
  for (const Layout& from : mesh_layouts(mesh, {Replicate(), Shard(0), Shard(1), Partial(), Partial(ReduceOp::kMax)})) {
    if (!normalize_placements(from.placements(), 2).ok()) continue;
    for (const Layout& to : mesh_layouts(mesh, {Replicate(), Shard(0), Shard(1)})) {
      plans.push_back(plan_redistribution(mesh, meta, from.placements(), to.placements()));
    }
    plans.push_back(plan_transfer(meta, from, Layout(row, {Shard(1)})));
  }
  for (const RedistributePlan& plan : plans) {
    CAPTURE(plan.to_string());
    run_transfer(plan, pieces_of(full, plan.from, true), kTransferCause);  // makes the schedule
    // Every rank has as much here, so that four times the plan's bytes are alive: the outputs and the step's inputs,
    // except those of the first step, which are the caller's.
    RankPieces locals = pieces_of(full, plan.from, true);
    int64_t expected = 0;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      expected = std::max(expected, 4 * plan.steps[s].peak_bytes - (s == 0 ? bytes_of(locals) : 0));
    }
    CHECK(peak_of([&] { run_transfer(plan, locals, kTransferCause); }) == expected);
  }
}

TEST_CASE("executor: a step's inputs are released when the step is done", "[executor]") {
  const DeviceMesh mesh(World::local(2), {2});
  const at::Tensor full = numbers({64, 64});
  // To the target, back, and to the target again.
  auto plan = plan_redistribution(mesh, meta_of_sizes({64, 64}), {Shard(0)}, {Shard(1)});
  const auto back = plan_redistribution(mesh, meta_of_sizes({64, 64}), {Shard(1)}, {Shard(0)});
  plan.steps = {plan.steps.at(0), back.steps.at(0), plan.steps.at(0)};
  plan.schedule = make_schedule_slot();
  RankTensors locals = {full.narrow(0, 0, 32).clone(), full.narrow(0, 32, 32).clone()};
  constexpr int64_t kWhole = 64 * 64 * 8;
  CHECK(peak_of([&] { run_plan(plan, locals, kTransferCause); }) == 2 * kWhole);  // the caller keeps its own input, too

  RankTensors out;
  const int64_t peak = peak_of([&] {
    RankTensors given_away = {locals[0].clone(), locals[1].clone()};
    out = run_plan(plan, std::move(given_away), kTransferCause);
  });
  CHECK(peak == 2 * kWhole);  // of the first step: later ones read tensors of the plan itself
  CHECK(at::equal(out[1], full.narrow(1, 32, 32)));
}

}  // namespace
}  // namespace dtensor
