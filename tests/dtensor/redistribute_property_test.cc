// Properties of redistribution over random meshes, shapes and layouts.
//
// Values are small integers in float64, so that sums are exact. The elements of a rank come from local_layout(). Also
// run with several processes (tests/processes): the world is then that of the job, one rank per process, and every
// process draws the same cases.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/redistribution/internal/executor.h"
#include "placement/geometry.h"
#include "plan/redistribute_planner.h"
#include "tests/testing/allocated_memory.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/property.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::AllocatedMemory;
using testing::draw;
using testing::holds;

// Ranks in processes of their own, 0 if all are in this one.
int64_t processes() {
  static const int64_t n = std::getenv("WORLD_SIZE") == nullptr ? 0 : std::atoll(std::getenv("WORLD_SIZE"));
  return n;
}

int64_t most_ranks() { return processes() > 0 ? processes() : 12; }

// Messages between processes take milliseconds.
int cases(int in_process) { return processes() > 0 ? in_process / 50 : in_process; }

World world_of(int64_t size) {
  static auto& worlds = *new std::map<int64_t, World>;
  World& world = worlds[processes() > 0 ? 0 : size];
  if (!world.defined()) world = processes() > 0 ? World::from_env() : World::local(size);
  return world;
}

Placement draw_placement(int64_t ndim) {
  switch (draw(0, ndim == 0 ? 1 : 3)) {
    case 1:
      return Partial();
    case 2:
      return Shard(draw(0, ndim - 1));
    case 3: {
      const int64_t dim = draw(0, ndim - 1);
      return StridedShard(dim, draw(1, 4));
    }
    default:
      return Replicate();
  }
}

struct Case {
  std::vector<int64_t> mesh_shape;
  std::vector<int64_t> sizes;
  Placements from, to;

  Case() {
    int64_t ranks = 1;
    for (int64_t m = draw(1, 3); m > 0; --m) {
      mesh_shape.push_back(draw(1, std::min<int64_t>(4, most_ranks() / ranks)));
      ranks *= mesh_shape.back();
    }
    for (int64_t d = draw(0, 3); d > 0; --d) sizes.push_back(draw(0, 7));
    for (size_t m = 0; m < mesh_shape.size(); ++m) {
      from.push_back(draw_placement(ndim()));
      to.push_back(draw_placement(ndim()));
    }
    RC_LOG() << "mesh [" << absl::StrJoin(mesh_shape, ", ") << "], tensor [" << absl::StrJoin(sizes, ", ") << "], "
             << from << " -> " << to << std::endl;
  }

  int64_t ndim() const { return static_cast<int64_t>(sizes.size()); }

  DeviceMesh mesh() const { return DeviceMesh(world_of(size()), mesh_shape); }

  DeviceMesh abstract_mesh() const { return DeviceMesh(World::abstract(size()), mesh_shape); }

  // 1, 2, 3, ...
  at::Tensor full() const {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return (at::arange(n, at::TensorOptions().dtype(at::kDouble)) + 1).reshape(sizes);
  }

  // full() in the layout `from`.
  at::Tensor source() const { return source_on(mesh()); }
  at::Tensor source_on(const DeviceMesh& on) const {
    std::vector<at::Tensor> locals;
    for (size_t i = 0; i < on.local_ranks().size(); ++i) {
      const auto at = on.local_coordinate(static_cast<int64_t>(i));
      locals.push_back(addend(part(mesh_shape, from, at), at));
    }
    if (locals.empty()) return zeros(sizes, on, from, {.dtype = at::kDouble});  // no rank of this process
    return from_local(locals, on, from, {.shape = sizes, .grad_placements = {}});
  }

  // The part of full() at a coordinate; Partial counts as Replicate.
  at::Tensor part(const std::vector<int64_t>& shape, const Placements& placements, absl::Span<const int64_t> at) const {
    at::Tensor t = full();
    const LocalLayout layout = local_layout(sizes, shape, placements, at);
    for (int64_t d = 0; d < ndim(); ++d) {
      std::vector<int64_t> indices;
      for (const IndexRange& run : layout.dims[d]) {
        for (int64_t k = 0; k < run.size; ++k) indices.push_back(run.begin + k);
      }
      t = t.index_select(d, at::tensor(indices, at::TensorOptions().dtype(at::kLong)));
    }
    return t;
  }

  int64_t size() const {
    return std::accumulate(mesh_shape.begin(), mesh_shape.end(), int64_t{1}, std::multiplies<>());
  }

 private:
  // The k-th of n addends that sum to t: t (k + 1), except the last, which compensates for the others.
  at::Tensor addend(const at::Tensor& t, absl::Span<const int64_t> at) const {
    int64_t n = 1, k = 0;
    for (size_t m = 0; m < from.size(); ++m) {
      if (!from[m].is_partial()) continue;
      n *= mesh_shape[m];
      k = k * mesh_shape[m] + at[m];
    }
    return k + 1 < n ? t * (k + 1) : t * (1 - n * (n - 1) / 2);
  }
};

// True if the owned ranks hold the parts of full() by `placements`, and all together its value.
bool holds_full(const Case& c, const at::Tensor& y, const DeviceMesh& mesh, const Placements& placements) {
  const DTensor handle(y);
  RC_ASSERT(handle.placements() == placements);
  // Ranks that differ only in Partial mesh dims hold the addends of one part.
  std::map<std::vector<int64_t>, at::Tensor> sums;
  bool partial = false;
  for (int64_t i = 0; i < static_cast<int64_t>(mesh.local_ranks().size()); ++i) {
    std::vector<int64_t> at(mesh.local_coordinate(i).begin(), mesh.local_coordinate(i).end());
    const at::Tensor local = handle.local(i);
    RC_ASSERT(local.sizes() == c.part(mesh.shape(), placements, at).sizes());
    for (size_t m = 0; m < at.size(); ++m) {
      if (!placements[m].is_partial()) continue;
      partial |= mesh.shape()[m] > 1;
      at[m] = 0;
    }
    at::Tensor& sum = sums[at];
    sum = sum.defined() ? sum + local : local;
  }
  if (partial && processes() > 0) return at::equal(full_tensor(y), c.full());
  for (const auto& [at, sum] : sums) {
    if (!at::equal(sum, c.part(mesh.shape(), placements, at))) return false;
  }
  return true;
}

struct Recorder : CommListener {
  int64_t events = 0, bytes = 0, received = 0;
  void on_comm(const CommEvent& event, bool before) override {
    if (before) return;
    ++events;
    bytes += event.bytes;
    received += event.received_bytes;
  }
};

TEST_CASE("random redistributions put every element where the layout says") {
  REQUIRE(holds("locals", cases(6000), [] {
    const Case c;
    RC_ASSERT(holds_full(c, redistribute(c.source(), c.to), c.mesh(), c.to));
  }));
}

TEST_CASE("random redistributions to the same layout have an empty plan") {
  REQUIRE(holds("identity", cases(2000), [] {
    const Case c;
    const at::Tensor x = c.source();
    const RedistributePlan plan = plan_of(x, c.from);
    RC_ASSERT(plan.steps.empty());
    RC_ASSERT(plan.bytes == 0);
    RC_ASSERT(redistribute(x, c.from).is_same(x));
  }));
}

TEST_CASE("random redistributions communicate as planned, also in an abstract world") {
  REQUIRE(holds("plan", cases(5000), [] {
    const Case c;
    const at::Tensor x = c.source();
    const RedistributePlan plan = plan_of(x, c.to);
    Recorder seen;
    {
      ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&seen); });
      redistribute(x, c.to);
    }
    RC_ASSERT(seen.events == plan.num_collectives());
    RC_ASSERT(seen.bytes == plan.bytes);
    if (processes() == 0) {
      RC_ASSERT(seen.received == plan.bytes);
    } else {
      RC_ASSERT(seen.received <= plan.bytes);  // some other rank may receive more
    }
    const DeviceMesh nobody = c.abstract_mesh();
    const at::Tensor same = zeros(c.sizes, nobody, c.from, {.dtype = at::kDouble});
    RC_ASSERT(plan_of(same, c.to).to_string() == plan.to_string());
  }));
}

TEST_CASE("random redistributions need the planned memory") {
  if (processes() > 0) return;  // with message buffers: tests/processes/redistribute_memory_test.cc
  REQUIRE(holds("peak", 3000, [] {
    const Case c;
    const at::Tensor x = c.source();
    const RedistributePlan plan = plan_of(x, c.to);
    const DeviceMesh mesh = c.mesh();
    const auto bytes = [&](const Placements& placements, int64_t rank) {
      int64_t n = sizeof(double);
      for (int64_t size : local_shape(c.sizes, mesh.shape(), placements, mesh.coordinate(rank))) n *= size;
      return n;
    };
    int64_t of_all = 0;      // that the process allocates at once
    int64_t of_largest = 0;  // that one rank holds at once
    for (const RedistributeStep& step : plan.steps) {
      int64_t sum = 0;
      for (int64_t rank : mesh.ranks()) {
        const int64_t in = bytes(step.before, rank);
        const int64_t out = bytes(step.after, rank);
        sum += out + (&step == &plan.steps[0] ? 0 : in);  // the first input belongs to the caller
        of_largest = std::max(of_largest, in + out);
      }
      of_all = std::max(of_all, sum);
    }
    if (!plan.steps.empty()) RC_ASSERT(plan.peak_bytes == of_largest);
    RankTensors locals = to_local(x);
    auto memory = std::make_shared<AllocatedMemory>();
    {
      c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
      run_plan(plan, locals, {});
    }
    RC_ASSERT(memory->peak() == of_all);
  }));
}

TEST_CASE("random round trips change nothing") {
  REQUIRE(holds("round trip", cases(4000), [] {
    const Case c;
    const at::Tensor back = redistribute(redistribute(c.source(), c.to), c.from);
    RC_ASSERT(DTensor(back).placements() == c.from);
    if (!c.mesh().local_ranks().empty()) RC_ASSERT(at::equal(full_tensor(back), c.full()));
  }));
}

TEST_CASE("random transfers to another mesh put every element where the layout says") {
  REQUIRE(holds("transfer", cases(4000), [] {
    const Case c;
    // Some of the world's ranks, in another order.
    const int64_t world_size = processes() > 0 ? processes() : 12;
    const World world = world_of(world_size);
    std::vector<int64_t> ranks(world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int64_t i = world_size; i-- > 1;) std::swap(ranks[i], ranks[draw(0, i)]);
    std::vector<int64_t> shape;
    Placements to;
    int64_t size = 1;
    for (int64_t m = draw(1, 2); m > 0; --m) {
      shape.push_back(draw(1, std::min<int64_t>(4, world_size / size)));
      size *= shape.back();
      to.push_back(draw_placement(c.ndim()));
    }
    ranks.resize(size);
    RC_LOG() << "to mesh [" << absl::StrJoin(shape, ", ") << "] of ranks " << absl::StrJoin(ranks, ", ") << ", " << to
             << std::endl;
    const DeviceMesh target(world, shape, {}, ranks);
    const DeviceMesh source(world, c.mesh_shape);
    const at::Tensor y = redistribute(c.source_on(source), target, to);
    RC_ASSERT(holds_full(c, y, target, to));
    const at::Tensor back = redistribute(y, source, c.from);
    RC_ASSERT(holds_full(c, back, source, c.from));
  }));
}

TEST_CASE("random tensors redistributed together equal those redistributed one by one") {
  REQUIRE(holds("many", cases(1500), [] {
    std::vector<at::Tensor> tensors;
    std::vector<Placements> targets;
    const Case first;
    for (int64_t k = draw(1, 3); k > 0; --k) {
      Case c = first;  // the same mesh, other layouts
      for (size_t m = 0; m < c.from.size(); ++m) {
        c.from[m] = draw_placement(c.ndim());
        c.to[m] = draw_placement(c.ndim());
      }
      RC_LOG() << c.from << " -> " << c.to << std::endl;
      tensors.push_back(c.source());
      targets.push_back(c.to);
    }
    const auto many = redistribute_many(tensors, targets);
    RC_ASSERT(many.size() == tensors.size());
    for (size_t k = 0; k < many.size(); ++k) {
      const DTensor one(redistribute(tensors[k], targets[k]));
      const DTensor other(many[k]);
      RC_ASSERT(one.placements() == other.placements());
      for (int64_t i = 0; i < static_cast<int64_t>(first.mesh().local_ranks().size()); ++i) {
        RC_ASSERT(at::equal(one.local(i), other.local(i)));
      }
    }
  }));
}

}  // namespace
}  // namespace dtensor
