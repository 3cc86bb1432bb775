// What a rank needs while tensors travel between processes, message buffers too: measured, against what plans say.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <regex>

#include "absl/strings/str_join.h"
#include "comm/communicator.h"
#include "comm/scope.h"
#include "dtensor/redistribution/internal/executor.h"
#include "placement/geometry.h"
#include "plan/redistribute_planner.h"
#include "plan/transfer/schedule.h"
#include "tests/processes/job_world.h"
#include "tests/testing/allocated_memory.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/property.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::AllocatedMemory;
using testing::draw;
using Kind = RedistributeStep::Kind;

// The most that this rank's messages of one round need, and how many rounds there were.
struct Rounds : CommListener {
  int64_t rank = 0, item = 0, most = 0, count = 0;
  void on_comm(const CommEvent&, bool) override {}
  void on_call(const CommEvent&, const CommView& view, bool before) override {
    if (before) return;
    ++count;
    int64_t bytes = 0;
    for (const Message& m : view.messages) {
      int64_t block = item;
      for (int64_t size : m.block.sizes) block *= size;
      if (m.sender == rank && m.receiver != rank) bytes += block;
      if (m.receiver == rank && m.sender != rank) bytes += block;
      if (m.receiver == rank && view.collective == Collective::kReduceScatter) bytes += block;  // an addend
    }
    most = std::max(most, bytes);
  }
};

// Of all ranks' values; the same on all.
int64_t most_of_all(int64_t mine) {
  const DeviceMesh all(job_world(), {job_world().size()});
  CommCall call;
  call.group = &all.group({0});
  call.ranks = all.local_ranks();
  const RankPieces values = job_world().communicator().all_gather(call, {at::tensor({mine}, at::kLong)});
  int64_t most = 0;
  for (const at::Tensor& t : values[0]) most = std::max(most, t.item<int64_t>());
  return most;
}

Placement draw_placement(int64_t ndim) {
  const int64_t kind = draw(0, ndim == 0 ? 1 : 4);
  if (kind <= 1) return kind == 0 ? Replicate() : Partial();
  const int64_t dim = draw(0, ndim - 1);
  return kind == 4 ? StridedShard(dim, draw(1, 4)) : Shard(dim);
}

// Some ranks of the job, in any order, as a mesh of up to two dims.
Layout draw_layout(int64_t ndim) {
  const World& world = job_world();
  std::vector<int64_t> ranks(world.size()), shape;
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int64_t i = world.size(); i-- > 1;) std::swap(ranks[i], ranks[draw(0, i)]);
  Placements placements;
  int64_t size = 1;
  for (int64_t m = draw(1, 2); m > 0; --m) {
    shape.push_back(draw(1, world.size() / size));
    size *= shape.back();
    placements.push_back(draw_placement(ndim));
  }
  ranks.resize(size);
  const Layout layout(DeviceMesh(world, shape, {}, ranks), placements);
  RC_LOG() << layout.to_string() << " of ranks " << absl::StrJoin(ranks, ",") << std::endl;
  return layout;
}

TensorMeta draw_meta() {
  Shape sizes;
  for (int64_t d = draw(0, 3); d > 0; --d) sizes.push_back(draw(1, 7) * (draw(0, 2) == 0 ? draw(2, 20) : 1));
  RC_LOG() << "[" << absl::StrJoin(sizes, ", ") << "]" << std::endl;
  Shape strides = row_major_strides(sizes);
  return {std::move(sizes), std::move(strides), at::kDouble};
}

// The bytes that this rank holds.
int64_t part_bytes(const TensorMeta& meta, const Layout& layout) {
  int64_t bytes = 0;
  for (const LocalLayout& part : layout.parts(meta.sizes, job_world().owned_ranks()[0])) {
    int64_t numel = 1;
    for (int64_t size : part.sizes()) numel *= size;
    bytes += numel * static_cast<int64_t>(c10::elementSize(meta.dtype));
  }
  return bytes;
}

// The most that this rank allocates at once to run `plan`, besides its part before.
int64_t peak_allocation(const RedistributePlan& plan, CommListener* listener = nullptr) {
  RankPieces inputs(1);
  for (const LocalLayout& part : plan.from.parts(plan.tensor.sizes, job_world().owned_ranks()[0])) {
    const Shape sizes = part.sizes();
    inputs[0].push_back(at::zeros(c10::IntArrayRef(sizes.data(), sizes.size()), plan.tensor.dtype));
  }
  const auto memory = std::make_shared<AllocatedMemory>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  ScopeGuard scope([&](Scope& s) {
    if (listener != nullptr) s.listeners.push_back(listener);
  });
  run_transfer(plan, inputs, {});
  return memory->peak();
}

// Runs a plan of one step, and compares. True if it needed all that is planned: no part was sent or received where it
// lies in a tensor.
bool check_step(const RedistributePlan& plan) {
  const RedistributeStep& step = plan.steps[0];
  const int64_t in = part_bytes(plan.tensor, plan.from), out = part_bytes(plan.tensor, plan.to);
  Rounds rounds;
  rounds.rank = job_world().owned_ranks()[0];
  rounds.item = static_cast<int64_t>(c10::elementSize(plan.tensor.dtype));
  const int64_t allocated = most_of_all(in + peak_allocation(plan, &rounds));
  const int64_t by_messages = most_of_all(in + out + rounds.most);
  RC_LOG() << plan.to_string() << ": planned " << step.peak_bytes << ", allocated " << allocated
           << ", parts and messages " << by_messages << std::endl;
  const bool is_exchange = !step.is_local() && step.kind != Kind::kAllReduce;
  if (is_exchange) {
    RC_ASSERT(by_messages == step.peak_bytes);
    RC_ASSERT(most_of_all(rounds.count) == step.chunks);
  }
  // Several rounds: until Gloo's threads release a buffer, there may be those of two.
  if (step.chunks == 1) RC_ASSERT(allocated <= step.peak_bytes);
  return step.chunks == 1 && allocated == step.peak_bytes;
}

// Without a limit, with half of what is needed then, or with what the error names.
PlanOptions draw_limit(const TensorMeta& meta, const Layout& from, const Layout& to) {
  PlanOptions options;
  if (draw(0, 1) == 0) return options;
  options.limits.max_bytes = plan_transfer(meta, from, to).peak_bytes / 2;
  try {
    plan_transfer(meta, from, to, options);
  } catch (const c10::Error& e) {
    std::smatch match;
    const std::string text = e.what_without_backtrace();
    RC_ASSERT(std::regex_search(text, match, std::regex("at least ([0-9]+) bytes")));
    options.limits.max_bytes = std::stoll(match[1]);
  }
  return options;
}

TEST_CASE("random steps need at most the planned memory") {
  std::map<Kind, int> seen, needed_all;
  REQUIRE(testing::holds("steps", 300, [&] {
    const TensorMeta meta = draw_meta();
    const Layout from = draw_layout(static_cast<int64_t>(meta.sizes.size()));
    Placements to;
    for (size_t m = 0; m < from.placements().size(); ++m)
      to.push_back(draw_placement(static_cast<int64_t>(meta.sizes.size())));
    RC_LOG() << "to " << to_string(to) << std::endl;
    const Layout target(from.mesh(), to);
    const RedistributePlan plan = plan_transfer(meta, from, target, draw_limit(meta, from, target));
    RC_ASSERT(plan.steps.empty() || plan.peak_bytes <= plan.limits.max_bytes);
    for (const RedistributeStep& step : plan.steps) {  // each as a plan of its own
      RedistributePlan one = plan;
      one.from = Layout(from.mesh(), step.before);
      one.to = Layout(from.mesh(), step.after);
      one.steps = {step};
      one.schedule = make_schedule_slot();
      needed_all[step.kind] += check_step(one) ? 1 : 0;
      ++seen[step.kind];
      seen[Kind::kTransfer] += step.chunks > 1 ? 1 : 0;  // rounds
    }
  }));
  for (Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather, Kind::kAllToAll, Kind::kTransfer}) {
    CAPTURE(static_cast<int>(kind));
    CHECK(seen[kind] > 0);
  }
  CHECK(needed_all[Kind::kAllToAll] > 0);
}

TEST_CASE("random transfers need at most the planned memory, and stay within limits") {
  int seen = 0, in_rounds = 0, needed_all = 0;
  REQUIRE(testing::holds("transfers", 300, [&] {
    const TensorMeta meta = draw_meta();
    const auto ndim = static_cast<int64_t>(meta.sizes.size());
    const Layout from = draw_layout(ndim), to = draw_layout(ndim);
    if (from.mesh() == to.mesh()) return;
    const RedistributePlan plan = plan_transfer(meta, from, to, draw_limit(meta, from, to));
    RC_ASSERT(plan.steps.empty() || plan.peak_bytes <= plan.limits.max_bytes);
    if (plan.steps.size() != 1 || plan.steps[0].kind != Kind::kTransfer) return;  // other steps: above
    needed_all += check_step(plan) ? 1 : 0;
    ++seen;
    in_rounds += plan.steps[0].chunks > 1 ? 1 : 0;
  }));
  CHECK(seen > 20);
  CHECK(in_rounds > 3);
  CHECK(needed_all > 3);
}

TEST_CASE("all-reduces of little and of much need at most the planned memory") {
  const DeviceMesh mesh(job_world(), {job_world().size()});
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int64_t n : {100, 100001}) {
      const Shape sizes = {n};
      CAPTURE(c10::toString(dtype), n);
      CHECK(testing::holds("all-reduce", 1, [&] {
        check_step(plan_redistribution(mesh, {sizes, {1}, dtype}, {Partial()}, {Replicate()}));
      }));
    }
  }
}

// The most that any rank allocates besides its part before and after, for a matrix of n x n floats.
int64_t buffers_of(int64_t n, const Placement& from, const Placement& to) {
  const DeviceMesh mesh(job_world(), {job_world().size()});
  const RedistributePlan plan = plan_redistribution(mesh, {{n, n}, {n, 1}, at::kFloat}, {from}, {to});
  return most_of_all(peak_allocation(plan) - part_bytes(plan.tensor, plan.to));
}

TEST_CASE(
    "a redistribution of rows allocates only addends and copies for several ranks; one of columns, to send them") {
  const int64_t ranks = job_world().size(), n = 256 * ranks, whole = n * n * 4, part = whole / ranks;
  const int64_t parts = ranks == 2 ? 1 : ranks;  // those of others, and this rank's own where it lies between them
  CHECK(buffers_of(n, Shard(0), Replicate()) == (ranks == 2 ? 0 : part * ranks));  // a copy for each
  CHECK(buffers_of(n, Shard(1), Shard(0)) == part / ranks * parts);                // columns, to send them
  CHECK(buffers_of(n, Partial(), Shard(0)) == part * parts);
  CHECK(buffers_of(n, Partial(), Replicate()) == part * parts);
}

}  // namespace
}  // namespace dtensor
