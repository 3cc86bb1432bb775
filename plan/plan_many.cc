#include "plan/plan_many.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "plan/largest_part.h"

namespace dtensor {
using namespace internal;

namespace {

using Kind = RedistributeStep::Kind;

// Steps with equal keys can be one collective.
struct CollectiveKey {
  Kind kind = Kind::kAllToAll;  // kAllToAll stands for all exchanges on one mesh
  ReduceOp op = ReduceOp::kSum;
  const void* mesh = nullptr;
  const void* target_mesh = nullptr;  // of a transfer
  MeshDims dims;
  int64_t chunks = 1;
  int plan = -1;  // of a step that cannot be combined

  friend bool operator<(const CollectiveKey& a, const CollectiveKey& b) {
    return std::tie(a.kind, a.op, a.mesh, a.target_mesh, a.dims, a.chunks, a.plan) <
           std::tie(b.kind, b.op, b.mesh, b.target_mesh, b.dims, b.chunks, b.plan);
  }
};

// The mesh that a step's dims belong to.
const DeviceMesh& mesh_of(const RedistributePlan& plan, size_t step) {
  for (size_t s = 0; s < step; ++s) {
    if (plan.steps[s].kind == Kind::kTransfer) return plan.to.mesh();
  }
  return plan.from.mesh();
}

CollectiveKey key_of(const RedistributePlan& plan, size_t s, int index) {
  const RedistributeStep& step = plan.steps[s];
  CollectiveKey key;
  key.chunks = step.chunks;
  if (step.kind == Kind::kTransfer) {
    key.kind = step.kind;
    key.mesh = plan.from.mesh().identity();
    key.target_mesh = plan.to.mesh().identity();
    if (plan.from.is_boxes() || plan.to.is_boxes()) key.plan = index;
    return key;
  }
  key.mesh = mesh_of(plan, s).identity();
  key.dims = step.dims;
  if (step.kind == Kind::kAllReduce || step.kind == Kind::kReduceScatter) {
    key.kind = step.kind;
    key.op = step.op;
  }
  return key;
}

// The collectives of one plan.
struct Line {
  std::vector<int> keys;
  std::vector<int> steps;
  size_t next = 0;
  bool done() const { return next == keys.size(); }
  bool is_at(int key) const { return !done() && keys[next] == key; }
  bool will_reach(int key) const {
    return !done() && std::find(keys.begin() + static_cast<int64_t>(next) + 1, keys.end(), key) != keys.end();
  }
};

// The key to process next: one that no line reaches later. If all lines wait for each other, the key with most lines.
int next_key(const std::vector<Line>& lines) {
  std::map<int, int> heads;
  std::vector<int> order;  // ordered by their first line
  for (const Line& line : lines) {
    if (!line.done() && heads[line.keys[line.next]]++ == 0) order.push_back(line.keys[line.next]);
  }
  for (int key : order) {
    const bool all_here = std::none_of(lines.begin(), lines.end(),
                                       [&](const Line& line) { return !line.is_at(key) && line.will_reach(key); });
    if (all_here) return key;
  }
  return *std::max_element(order.begin(), order.end(), [&](int a, int b) { return heads[a] < heads[b]; });
}

// The ranks that take part.
GroupExtent extent_of(const RedistributePlan& plan, size_t s) {
  const RedistributeStep& step = plan.steps[s];
  if (step.kind == Kind::kTransfer) {
    std::unordered_set<int64_t> ranks, nodes;
    for (const Layout* layout : {&plan.from, &plan.to}) {
      for (int64_t rank : layout->ranks()) {
        ranks.insert(rank);
        nodes.insert(rank / plan.cost->ranks_per_node);
      }
    }
    return GroupExtent::of_links(static_cast<int64_t>(ranks.size()), nodes.size() > 1);
  }
  const DeviceMesh& mesh = mesh_of(plan, s);
  const uint64_t between_nodes = mesh.dims_between_nodes(plan.cost->ranks_per_node);
  int64_t size = 1;
  bool crosses_nodes = false;
  for (int64_t dim : step.dims) {
    size *= mesh.size(dim);
    crosses_nodes |= (between_nodes >> dim & 1) != 0;
  }
  return GroupExtent::of_links(size, crosses_nodes);
}

// The latency of step s, as a `collective`.
double latency(const RedistributePlan& plan, size_t s, Collective collective) {
  return static_cast<double>(plan.steps[s].chunks) * plan.cost->collective(collective, extent_of(plan, s), 0);
}

// Fills in the properties and the cost of a round: those of its steps as one collective, with a single latency.
void price(const BatchPlan& batch, BatchPlan::Round& round) {
  const auto& [first_plan, first_step] = round.steps[0];
  round.collective = batch.plans[first_plan]->steps[first_step].collective();
  for (const auto& [p, s] : round.steps) {
    if (batch.plans[p]->steps[s].collective() != round.collective) round.collective = Collective::kAllToAll;
  }
  const GroupExtent group = extent_of(*batch.plans[first_plan], first_step);
  const CostModel& cost = *batch.plans[first_plan]->cost;
  const auto seconds = [&](Collective c, const RedistributeStep& step) {
    return cost.collective(c, group, step.bytes) + static_cast<double>(step.chunks - 1) * cost.collective(c, group, 0);
  };
  for (const auto& [p, s] : round.steps) {
    const RedistributeStep& step = batch.plans[p]->steps[s];
    round.bytes += step.bytes;
    round.seconds += step.seconds;
    if (step.collective() != round.collective)
      round.seconds += seconds(round.collective, step) - seconds(step.collective(), step);
  }
  round.seconds -= static_cast<double>(round.steps.size() - 1) *
                   latency(*batch.plans[first_plan], static_cast<size_t>(first_step), round.collective);
}

int64_t peak_bytes(const BatchPlan& batch) {
  std::vector<int64_t> alive;
  std::vector<size_t> next(batch.plans.size(), 0);
  for (const auto& plan : batch.plans) alive.push_back(largest_part_bytes(plan->tensor, plan->from));
  int64_t total = 0;
  for (int64_t bytes : alive) total += bytes;
  int64_t peak = total;
  const auto finish = [&](int p) {  // the next step
    const RedistributePlan& plan = *batch.plans[p];
    const size_t s = next[p]++;
    const bool last = s + 1 == plan.steps.size();
    const Layout after = last ? plan.to : Layout(mesh_of(plan, s + 1), plan.steps[s].after);
    const int64_t bytes = largest_part_bytes(plan.tensor, after);
    total += bytes - alive[p];
    alive[p] = bytes;
  };
  const auto run_local = [&](int p, size_t end) {
    while (next[p] < end) {
      peak = std::max(peak, total - alive[p] + batch.plans[p]->steps[next[p]].peak_bytes);
      finish(p);
    }
  };
  for (const BatchPlan::Round& round : batch.rounds) {
    for (const auto& [p, s] : round.steps) run_local(p, s);
    int64_t bytes = total;
    for (const auto& [p, s] : round.steps) bytes += batch.plans[p]->steps[s].peak_bytes - alive[p];
    peak = std::max(peak, bytes);
    for (const auto& [p, s] : round.steps) finish(p);
  }
  for (size_t p = 0; p < batch.plans.size(); ++p) run_local(static_cast<int>(p), batch.plans[p]->steps.size());
  return peak;
}

std::string group_name(const RedistributePlan& plan, size_t s) {
  const RedistributeStep& step = plan.steps[s];
  if (step.kind == Kind::kTransfer) return "transfer";
  std::vector<std::string> names;
  for (int64_t dim : step.dims) names.push_back(mesh_of(plan, s).names()[dim]);
  return absl::StrJoin(names, ",");
}

}  // namespace

BatchPlan plan_many(c10::ArrayRef<Redistribution> tensors, const Limits& limits) {
  std::vector<std::shared_ptr<const RedistributePlan>> plans;
  for (const Redistribution& t : tensors) plans.push_back(cached_plan(t.from, t.to, limits));
  return batch_plans(std::move(plans), limits);
}

double seconds_to_move(const SpecPtr& from, const Placements& to, const Limits& limits) {
  const auto plan = cached_plan_within(from, to, limits);
  return plan ? plan->seconds : std::numeric_limits<double>::infinity();
}

double seconds_to_move(c10::ArrayRef<Redistribution> tensors, const Limits& limits) {
  std::vector<std::shared_ptr<const RedistributePlan>> plans;
  for (const Redistribution& t : tensors) {
    plans.push_back(cached_plan_within(t.from, t.to, limits));
    if (!plans.back()) return std::numeric_limits<double>::infinity();
  }
  return batch_plans(std::move(plans), limits).seconds;
}

BatchPlan batch_plans(std::vector<std::shared_ptr<const RedistributePlan>> plans, const Limits& limits) {
  BatchPlan batch;
  batch.plans = std::move(plans);
  std::map<CollectiveKey, int> numbers;
  std::vector<Line> lines(batch.plans.size());
  for (size_t p = 0; p < batch.plans.size(); ++p) {
    const RedistributePlan& plan = *batch.plans[p];
    const World &world = plan.from.world(), &first = batch.plans[0]->from.world();
    TORCH_CHECK_VALUE(world == first, "[redistribute] tensor 0 is in ", first.name(), " and tensor ", p,
                      " in another world, ", world.name(), "; only tensors of one world can travel together");
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      if (plan.steps[s].is_local()) {
        batch.seconds += plan.steps[s].seconds;
        continue;
      }
      const auto [it, is_new] =
          numbers.try_emplace(key_of(plan, s, static_cast<int>(p)), static_cast<int>(numbers.size()));
      lines[p].keys.push_back(it->second);
      lines[p].steps.push_back(static_cast<int>(s));
    }
  }
  while (!std::all_of(lines.begin(), lines.end(), [](const Line& line) { return line.done(); })) {
    const int key = next_key(lines);
    BatchPlan::Round& round = batch.rounds.emplace_back();
    int64_t room = limits.max_bytes;  // a single step, which is within the limits by itself, always fits
    for (size_t p = 0; p < lines.size(); ++p) {
      if (!lines[p].is_at(key)) continue;
      const int s = lines[p].steps[lines[p].next];
      const int64_t needed = batch.plans[p]->steps[s].peak_bytes;
      if (!round.steps.empty() && needed > room) continue;
      room -= needed;
      round.steps.emplace_back(static_cast<int>(p), s);
      ++lines[p].next;
    }
    price(batch, round);
    batch.bytes += round.bytes;
    batch.seconds += round.seconds;
  }
  batch.peak_bytes = peak_bytes(batch);
  return batch;
}

double latency_of(const RedistributePlan& plan) {
  double seconds = 0;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    if (!plan.steps[s].is_local()) seconds += latency(plan, s, plan.steps[s].collective());
  }
  return seconds;
}

std::string BatchPlan::explain() const {
  const auto count = [](size_t n, const char* noun) { return absl::StrCat(n, " ", noun, n == 1 ? "" : "s"); };
  const auto cost = [](int64_t bytes, double seconds) {
    return absl::StrFormat("%d B, %.1f us", bytes, seconds * 1e6);
  };
  std::string text = absl::StrCat(count(plans.size(), "tensor"), " in ", count(rounds.size(), "collective"), ", ",
                                  cost(bytes, seconds), "\n");
  for (size_t r = 0; r < rounds.size(); ++r) {
    const Round& round = rounds[r];
    const auto& [p, s] = round.steps[0];
    absl::StrAppend(&text, "  ", r + 1, ". ", std::string(to_string(round.collective)), "(", group_name(*plans[p], s),
                    ") of ", count(round.steps.size(), "tensor"), ", ", cost(round.bytes, round.seconds), "\n");
  }
  return text;
}

}  // namespace dtensor
