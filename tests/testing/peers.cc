#include "tests/testing/peers.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "plan/plan_text.h"
#include "tests/testing/peer_parts.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Kind = RedistributeStep::Kind;

constexpr int kMaxSteps = 4;

bool can_reduce_together(const Placement& a, const Placement& b) {
  return a.is_partial() && b.is_partial() && a.reduce_op() == b.reduce_op();
}

// Visits every assignment of `choices`, from number `first` on, to the mesh dims in `dims`; the others stay as in
// `state`.
template <typename Visit>
void for_each_assignment(const std::vector<Placements>& choices, const Placements& state,
                         const std::vector<size_t>& dims, size_t first, const Visit& visit) {
  Placements next = state;
  std::vector<size_t> index(dims.size(), first);
  for (;;) {
    for (size_t i = 0; i < dims.size(); ++i) next[dims[i]] = choices[dims[i]][index[i]];
    visit(next);
    size_t i = dims.size();
    while (i > 0 && ++index[i - 1] == choices[dims[i - 1]].size()) index[--i] = first;
    if (i == 0) return;
  }
}

}  // namespace

std::string PeerPlan::to_string() const {
  std::string text = steps.empty() ? "nothing to do" : dtensor::to_string(steps[0].before);
  for (const PeerStep& step : steps) {
    absl::StrAppend(&text, " -> ", dtensor::to_string(step.after), " [", name_of(step.kind), " ", step.bytes, "]");
  }
  return text;
}

// Everything that can be reached from one layout.
struct PlanPeers::Search {
  struct Reach {
    int64_t bytes = std::numeric_limits<int64_t>::max();
    int64_t largest_part = 0;
    std::vector<PeerStep> steps;
    friend bool operator<(const Reach& a, const Reach& b) {
      return std::tie(a.bytes, a.largest_part) < std::tie(b.bytes, b.largest_part);
    }
  };
  absl::flat_hash_map<Placements, Reach> reached;
};

PlanPeers::PlanPeers(const DeviceMesh& mesh, TensorMeta meta)
    : mesh_shape_(mesh.shape()),
      meta_(std::move(meta)),
      parts_(std::make_unique<PeerParts>(mesh_shape_, meta_.sizes)) {}

PlanPeers::~PlanPeers() = default;

int64_t PlanPeers::received_bytes(const Placements& before, const Placements& after) {
  const size_t a = parts_->id(before);
  return parts_->received(a, parts_->id(after)) * static_cast<int64_t>(c10::elementSize(meta_.dtype));
}

int64_t PlanPeers::largest_part(const Placements& placements) {
  return parts_->layouts[parts_->id(placements)].largest * static_cast<int64_t>(c10::elementSize(meta_.dtype));
}

void PlanPeers::add_step(PeerPlan& plan, Kind kind, Placements after, const Placements& from) {
  PeerStep step;
  step.kind = kind;
  step.before = plan.steps.empty() ? from : plan.steps.back().after;
  step.after = std::move(after);
  int64_t group = 1;
  for (size_t m = 0; m < mesh_shape_.size(); ++m) group *= step.before[m] == step.after[m] ? 1 : mesh_shape_[m];
  const int64_t in = largest_part(step.before);
  switch (kind) {
    case Kind::kFill:
      break;
    case Kind::kAllReduce:
      step.bytes = 2 * in * (group - 1) / group;
      break;
    case Kind::kReduceScatter:
      step.bytes = in * (group - 1) / group;
      break;
    default:
      step.bytes = received_bytes(step.before, step.after);
  }
  plan.bytes += step.bytes;
  plan.largest_part = std::max(plan.largest_part, largest_part(step.after));
  plan.steps.push_back(std::move(step));
}

PeerPlan PlanPeers::greedy(const Placements& from, const Placements& to, bool all_to_all) {
  PeerPlan plan;
  plan.largest_part = largest_part(from);
  Placements current = from;
  const auto become = [&](Kind kind, size_t m, const Placement& p) {
    current[m] = p;
    // torch skips what a mesh dim of size 1 would do.
    if (mesh_shape_[m] > 1) add_step(plan, kind, current, from);
  };
  const auto change = [&](size_t m, const Placement& target) {
    if (current[m] == target) return;
    if (current[m].is_partial() && target.is_shard()) return become(Kind::kReduceScatter, m, target);
    if (all_to_all && current[m].is_shard() && target.is_shard()) return become(Kind::kAllToAll, m, target);
    if (current[m].is_partial()) become(Kind::kAllReduce, m, Replicate());
    if (current[m].is_sharded()) become(Kind::kAllGather, m, Replicate());
    if (target.is_sharded()) become(Kind::kSlice, m, target);
    if (target.is_partial()) become(Kind::kFill, m, target);
  };

  const bool sharded = std::any_of(from.begin(), from.end(), [](const Placement& p) { return p.is_sharded(); });
  for (size_t m = from.size(); sharded && m-- > 0;) {
    bool matches = true;  // the same mesh dims before this one cut the tensor dim, now and in the end
    for (size_t i = 0; i < m && to[m].is_sharded(); ++i) {
      matches &= current[i].is_sharded_on(to[m].dim()) == to[i].is_sharded_on(to[m].dim());
    }
    change(m, matches ? to[m] : Replicate());
  }
  for (size_t m = 0; m < from.size(); ++m) change(m, to[m]);
  return plan;
}

// What may become of each mesh dim on the way from `from` to `to`; Replicate stands first.
std::vector<Placements> PlanPeers::choices(const Placements& from, const Placements& to) const {
  const size_t mesh_ndim = from.size();
  std::vector<Placements> choices(mesh_ndim, {Replicate()});
  for (size_t m = 0; m < mesh_ndim; ++m) {
    for (size_t d = 0; d < meta_.sizes.size(); ++d) choices[m].push_back(Shard(static_cast<int64_t>(d)));
    // Cut further what later mesh dims cut: each of the pieces that they make.
    for (size_t d = 0; from[m].is_partial() && d < meta_.sizes.size(); ++d) {
      int64_t pieces = 1;
      for (size_t later = m + 1; later < mesh_ndim; ++later) {
        if (from[later].is_sharded_on(static_cast<int64_t>(d))) pieces *= mesh_shape_[later];
      }
      if (pieces > 1) choices[m].push_back(StridedShard(static_cast<int64_t>(d), pieces));
    }
    for (const Placement& p : {from[m], to[m]}) {
      if (p.is_strided_shard()) choices[m].push_back(p);
    }
  }
  return choices;
}

// Searches from one layout share their result where `to` makes no difference to them.
std::string PlanPeers::search_key(const Placements& from, const Placements& to) const {
  std::string key = dtensor::to_string(from);
  for (size_t m = 0; m < from.size(); ++m) {
    for (const Placement& p : {from[m], to[m]}) {
      if (p.is_strided_shard() || (p.is_shard() && meta_.sizes[p.dim()] < mesh_shape_[m])) {
        absl::StrAppend(&key, " ", m, dtensor::to_string({p}));
      }
    }
  }
  return key;
}

// One step further from `state`, in every way that is allowed: visit(kind, layout after it).
template <typename Visit>
void PlanPeers::visit_steps(const Placements& state, const Placements& to, const std::vector<Placements>& choices,
                            bool after_exchange, const Visit& visit) {
  std::vector<size_t> partial, rest;
  for (size_t m = 0; m < state.size(); ++m) (state[m].is_partial() ? partial : rest).push_back(m);
  // Two exchanges in a row are never better than one.
  if (!after_exchange) {
    for_each_assignment(choices, state, rest, 0, [&](const Placements& after) {
      if (after != state) visit(Kind::kAllToAll, after);
    });
  }
  for (size_t set = 1; set < size_t{1} << partial.size(); ++set) {
    std::vector<size_t> dims;
    Placements reduced = state;
    for (size_t i = 0; i < partial.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      dims.push_back(partial[i]);
      reduced[partial[i]] = Replicate();
    }
    const auto with_first = [&](size_t m) { return can_reduce_together(state[m], state[dims[0]]); };
    if (!std::all_of(dims.begin(), dims.end(), with_first)) continue;
    visit(Kind::kAllReduce, reduced);
    if (choices[dims[0]].size() == 1) continue;  // a scalar
    for_each_assignment(choices, state, dims, 1, [&](const Placements& after) {
      for (size_t m : dims) {
        if (after[m] != to[m] && meta_.sizes[after[m].dim()] < mesh_shape_[m]) return;
      }
      if (received_bytes(state, after) == 0) visit(Kind::kReduceScatter, after);
    });
  }
}

const PlanPeers::Search& PlanPeers::search(const Placements& from, const Placements& to) {
  std::unique_ptr<Search>& memo = searches_[search_key(from, to)];
  if (memo) return *memo;
  memo = std::make_unique<Search>();
  const std::vector<Placements> choices = this->choices(from, to);
  auto& reached = memo->reached;
  reached[from] = {0, largest_part(from), {}};
  std::vector<Placements> frontier = {from};
  for (int round = 0; round < kMaxSteps && !frontier.empty(); ++round) {
    absl::flat_hash_map<Placements, Search::Reach> better;
    for (const Placements& state : frontier) {
      const Search::Reach at = reached[state];
      const bool after_exchange = !at.steps.empty() && at.steps.back().kind == Kind::kAllToAll;
      visit_steps(state, to, choices, after_exchange, [&](Kind kind, const Placements& after) {
        PeerPlan plan;
        plan.largest_part = at.largest_part;
        add_step(plan, kind, after, state);
        const Search::Reach reach{at.bytes + plan.bytes, plan.largest_part, {}};
        if (auto it = reached.find(after); it != reached.end() && !(reach < it->second)) return;
        Search::Reach& best = better[after];
        if (!(reach < best)) return;
        best = reach;
        best.steps = at.steps;
        best.steps.push_back(plan.steps[0]);
      });
    }
    frontier.clear();
    for (auto& [state, reach] : better) {
      reached[state] = std::move(reach);
      frontier.push_back(state);
    }
  }
  return *memo;
}

PeerPlan PlanPeers::bound(const Placements& given_from, const Placements& to) {
  Placements from = given_from;
  for (size_t m = 0; m < from.size(); ++m) {
    if (mesh_shape_[m] == 1 || (from[m].is_mask_partial() && to[m] == Partial(from[m].reduce_op()))) from[m] = to[m];
  }
  PeerPlan plan;
  plan.largest_part = std::max(largest_part(from), largest_part(to));
  if (from == to || meta_.numel() == 0) return plan;

  // `to` before the last fill. What is Partial already may stay so, or be reduced and filled again.
  std::vector<Placements> goals = {to};
  for (size_t m = 0; m < to.size(); ++m) {
    if (!to[m].is_partial()) continue;
    const size_t n = goals.size();
    for (size_t i = 0; i < n; ++i) {
      if (from[m] == to[m]) goals.push_back(goals[i]);
      goals[i][m] = Replicate();
    }
  }

  if (std::none_of(from.begin(), from.end(), [](const Placement& p) { return p.is_partial(); })) {
    if (from != goals[0]) add_step(plan, Kind::kAllToAll, goals[0], from);
  } else {
    const Search& found = search(from, to);
    const Search::Reach* best = nullptr;
    for (const Placements& goal : goals) {
      auto it = found.reached.find(goal);
      if (it != found.reached.end() && (best == nullptr || it->second < *best)) best = &it->second;
    }
    plan.steps = best->steps;
    plan.bytes = best->bytes;
    plan.largest_part = best->largest_part;
  }
  for (PeerStep& step : plan.steps) {
    if (step.kind == Kind::kAllToAll && step.bytes == 0) step.kind = Kind::kSlice;
  }
  if ((plan.steps.empty() ? from : plan.steps.back().after) != to) add_step(plan, Kind::kFill, to, from);
  return plan;
}

PeerPlan greedy_plan(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to) {
  return PlanPeers(mesh, meta).greedy(from, to);
}

int64_t bound_bytes(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to) {
  return PlanPeers(mesh, meta).bound(from, to).bytes;
}

int64_t closed_form_1d(const Placement& from, const Placement& to, int64_t bytes, int64_t ranks) {
  const int64_t others = ranks - 1;
  if (from == to || from.is_replicate()) return 0;
  if (from.is_partial()) return (to.is_sharded() ? 1 : 2) * bytes * others / ranks;
  return to.is_sharded() ? bytes * others / (ranks * ranks) : bytes * others / ranks;
}

}  // namespace dtensor::testing
