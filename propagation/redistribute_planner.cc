#include "propagation/redistribute_planner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "propagation/layout_geometry.h"
#include "propagation/mesh_steps.h"
#include "propagation/step_pricer.h"
#include "propagation/transfer.h"

namespace dtensor {
namespace {

using Kind = RedistributeStep::Kind;
using Picoseconds = int64_t;  // whole numbers: sums do not depend on the order

constexpr int64_t kMaxChanging = 15;  // mesh dims that a search can tell apart: four bits each
constexpr int64_t kMaxWithHelpers = 4;  // of them, where some only help to reduce
constexpr double kRounding = 16;         // bytes that steps may round down, all in all
constexpr uint64_t kAll = ~uint64_t{0};  // mesh dims
constexpr size_t kMaxArrivals = 2000;  // states visited for the routes that are only shown
constexpr size_t kMaxComplete = 3;     // mesh dims that change, up to which a search always goes to its end
constexpr int64_t kMaxWork = 1000;     // of other searches: steps priced, which is enough for nearly the same plans
constexpr int64_t kMaxWorkWithin = 64 * kMaxWork;  // of those that have no route within the limits yet

// Layouts are numbers: four bits per mesh dim that changes, which of its placements it has.
using State = uint64_t;

class Search {
 public:
  // Without `helpers`, only the mesh dims that change take part.
  Search(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to, const CostModel& cost,
         const Limits& limits, bool helpers = true, bool complete = false);

  // The steps of the shortest path; false if the limits leave none.
  bool run(std::vector<RedistributeStep>& steps);
  // What the first route that comes to mind takes. REQUIRES: not complete.
  Picoseconds plain_length();
  // Complete paths, one for each last step into the target, the shortest first.
  std::vector<Route> all_arrivals();
  // After run() found nothing: smaller limits than this leave nothing, either.
  int64_t least_refused() const { return pricer_.least_refused(); }

 private:
  struct Node {
    State state = 0;
    Picoseconds distance = 0;
    Picoseconds left = 0;  // where only some states are visited: what a plain way on would take, so that good ones come first
    int collectives = 0;
    int steps = 0;
    int previous = -1;
    bool done = false;
    PricedStep edge;  // from previous to here

    bool before(const Node& other) const {
      if (distance + left != other.distance + other.left) return distance + left < other.distance + other.left;
      if (collectives != other.collectives) return collectives < other.collectives;
      return steps < other.steps;
    }
  };
  // The choices of a mesh dim that changes. Then come Shards that a Partial may be scattered to.
  static constexpr int kTo = 0, kFrom = 1, kReplicate = 2;
  struct Changing {
    int64_t mesh_dim = 0;
    absl::InlinedVector<const Placement*, 6> choices;
  };
  using Subset = absl::InlinedVector<int, 4>;  // of changing_

  int choice(State state, int i) const { return static_cast<int>(state >> (4 * i) & 15); }
  static State with(State state, int i, int choice) {
    return (state & ~(State{15} << (4 * i))) | static_cast<State>(choice) << (4 * i);
  }
  // "As in `to`" and "replicated" are one state where `to` is Replicate.
  int replicated(int i) const { return changing_[i].choices[kTo]->is_replicate() ? kTo : kReplicate; }
  MeshDims landing_dims_of(const DeviceMesh& mesh, const Placements& from, const Placements& to) const;
  const Layers& layers(State state);
  uint64_t bits(const Subset& subset) const {
    uint64_t dims = 0;
    for (int i : subset) dims |= uint64_t{1} << changing_[i].mesh_dim;
    return dims;
  }

  // Mesh dims, a bit each.
  uint64_t changed(State a, State b) const {
    uint64_t dims = 0;
    for (size_t k = 0; k < changing_.size(); ++k) {
      if (choice(a, static_cast<int>(k)) != choice(b, static_cast<int>(k))) dims |= uint64_t{1} << changing_[k].mesh_dim;
    }
    return dims;
  }

  State start_state() const;
  void seed();
  bool fills(State state, uint64_t& dims, State& after) const;
  bool may_stop() const;
  int nearest() const;
  void expand(int node);
  template <typename Becomes>
  void add_subsets(Kind kind, int node, const Subset& candidates, Becomes becomes);
  bool overlay(State state, uint64_t may_change, State& after, uint64_t& dims);
  void add_overlay(int node, uint64_t may_change);
  void relax(int node, Kind kind, uint64_t dims, State after);
  Picoseconds remaining(State state);
  Picoseconds plain_way(State state);
  bool plain_step(State state, Kind& kind, uint64_t& dims, State& after);
  std::vector<RedistributeStep> path_to(int node, const PricedStep* last = nullptr);
  Placements placements(State state);

  StepPricer pricer_;
  const LayoutGeometry& geometry_;
  const CostModel& cost_;
  const Placement replicate_;
  std::vector<Placement> landings_;  // that choices point to
  absl::InlinedVector<Changing, 4> changing_;
  Layers fixed_;
  Layers scratch_;
  State target_ = 0;
  State reduced_target_ = 0;  // the target before fills
  bool leaves_nodes_ = false;  // shards on a mesh dim between nodes change
  int64_t target_bytes_ = 0;   // of the largest part of it
  double target_average_ = 0;  // bytes of its parts
  double least_part_ = 0;      // the average where all mesh dims cut that do not stay Partial
  bool complete_ = true;       // to the end, however long that takes
  int64_t work_ = 0, step_work_ = 1;  // in steps that are priced quickly
  std::vector<Node> nodes_;
  absl::flat_hash_map<State, int> index_;
  bool keep_arrivals_ = false;
  std::vector<std::pair<int, PricedStep>> arrivals_;
};

// The tensor dims to which a Partial may be scattered on the way: of those that are all alike only one.
MeshDims Search::landing_dims_of(const DeviceMesh& mesh, const Placements& from, const Placements& to) const {
  MeshDims dims;
  bool has_free = false;
  for (int64_t d = 0; d < geometry_.tensor_ndim(); ++d) {
    bool free = geometry_.size(d) % mesh.size() == 0;
    for (size_t m = 0; m < from.size(); ++m) free &= !from[m].is_sharded_on(d) && !to[m].is_sharded_on(d);
    if (!free || !has_free) dims.push_back(d);
    has_free |= free;
  }
  return dims;
}

Search::Search(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
               const CostModel& cost, const Limits& limits, bool helpers, bool complete)
    : pricer_(mesh, meta, cost, limits), geometry_(pricer_.geometry), cost_(cost), fixed_(layers_of(from)) {
  bool reduces = false;
  int64_t changing = 0;
  for (size_t m = 0; m < from.size(); ++m) {
    reduces |= from[m].is_partial() && from[m] != to[m];
    changing += from[m] != to[m] ? 1 : 0;
  }
  const uint64_t between_nodes = pricer_.has_two_levels() ? pricer_.between_nodes() : 0;
  for (size_t m = 0; m < from.size(); ++m) {
    leaves_nodes_ |= helpers && (between_nodes >> m & 1) != 0 && from[m].is_sharded() && from[m] != to[m];
  }
  MeshDims landing_dims;  // of the tensor
  if (reduces || leaves_nodes_) landing_dims = landing_dims_of(mesh, from, to);
  landings_.reserve(from.size() * landing_dims.size() * 3);
  for (size_t m = 0; m < from.size(); ++m) {
    // While others reduce, ranks that hold copies can share the work, and shards may be elsewhere. So can those of a node
    // that hold copies of what comes from other nodes.
    const bool shares = leaves_nodes_ && (between_nodes >> m & 1) == 0 && from[m].is_replicate();
    const bool helps = helpers && (reduces || shares) && !from[m].is_partial() && mesh.shape()[m] > 1;
    if (from[m] == to[m] && !(helps && changing < kMaxWithHelpers)) continue;
    changing += from[m] == to[m] ? 1 : 0;
    Changing& c = changing_.emplace_back();
    c.mesh_dim = static_cast<int64_t>(m);
    c.choices = {&to[m], &from[m], &replicate_};
    if (!from[m].is_partial() && !(helps && from[m].is_replicate())) continue;
    for (int64_t d : landing_dims) {
      if (geometry_.size(d) < mesh.shape()[m]) continue;
      // Parts that later mesh dims cut this one's into: as they do in `from`, in `to`, or, where there is
      // no other tensor dim to share the work along, all that can.
      const int ways = landing_dims.size() == 1 ? 3 : 2;
      int64_t inner[3] = {1, 1, 1};
      for (size_t later = m + 1; later < from.size(); ++later) {
        const bool cuts[3] = {from[later].is_sharded_on(d), to[later].is_sharded_on(d), !from[later].is_partial()};
        for (int i = 0; i < 3; ++i) inner[i] *= cuts[i] ? mesh.shape()[later] : 1;
      }
      for (int i = 0; i < ways; ++i) {
        const Placement landing = inner[i] == 1 ? Shard(d) : StridedShard(d, inner[i]);
        const auto same = [&](const Placement* choice) { return *choice == landing; };
        if (landing == to[m] || std::any_of(c.choices.begin() + 3, c.choices.end(), same)) continue;
        if (c.choices.size() == 16) break;
        landings_.push_back(landing);
        c.choices.push_back(&landings_.back());
      }
    }
  }
  for (size_t i = 0; i < changing_.size(); ++i) {
    if (changing_[i].choices[kTo]->is_partial()) reduced_target_ = with(reduced_target_, static_cast<int>(i), kReplicate);
  }
  complete_ = complete || (helpers && changing_.size() <= kMaxComplete);
  // Where parts are irregular, pricing visits ranks.
  const auto irregular = [&](int64_t size) { return size % mesh.size() != 0; };
  if (std::any_of(meta.sizes.begin(), meta.sizes.end(), irregular)) step_work_ += mesh.size() / 16;
  const Layers& target = layers(reduced_target_);
  target_bytes_ = geometry_.part_bytes(target);
  least_part_ = target_average_ = static_cast<double>(meta.bytes());
  for (int64_t m = 0; m < geometry_.ndim(); ++m) {
    if (target[m]->is_sharded()) target_average_ /= static_cast<double>(geometry_.mesh_size(m));
    if (!target[m]->is_partial()) least_part_ /= static_cast<double>(geometry_.mesh_size(m));
  }
}

const Layers& Search::layers(State state) {
  scratch_ = fixed_;
  for (size_t i = 0; i < changing_.size(); ++i) {
    scratch_[changing_[i].mesh_dim] = changing_[i].choices[choice(state, static_cast<int>(i))];
  }
  return scratch_;
}

Placements Search::placements(State state) {
  Placements list;
  for (const Placement* p : layers(state)) list.push_back(*p);
  return list;
}

// A lower bound of the time from `state` to the target. What parts lack in size must be received. A reduction over n ranks, at
// best of parts that all other ranks W / n share, receives at least N / W * (n - 1) and leaves at least N / W, on average.
Picoseconds Search::remaining(State state) {
  double reducing = 1;
  for (size_t i = 0; i < changing_.size(); ++i) {
    const Changing& c = changing_[i];
    if (choice(state, static_cast<int>(i)) == kFrom && c.choices[kFrom]->is_partial()) {
      reducing *= static_cast<double>(geometry_.mesh_size(c.mesh_dim));
    }
  }
  const int64_t lacking = target_bytes_ - geometry_.part_bytes(layers(state));
  if (reducing == 1 && lacking <= 0) return 0;
  double bytes = static_cast<double>(lacking);
  if (reducing > 1) bytes = std::max(bytes, least_part_ * (reducing - 2) + target_average_ - kRounding);
  return std::llround(cost_.least(std::max<int64_t>(reducing > 1 ? 0 : 1, static_cast<int64_t>(bytes))) * 1e12) - 1;
}

// What the steps take that plain_step() gives, one after the other.
Picoseconds Search::plain_way(State state) {
  Picoseconds total = 0;
  Kind kind = Kind::kSlice;
  uint64_t dims = 0;
  PricedStep edge;
  for (State after; state != target_; state = after) {
    if (!plain_step(state, kind, dims, after)) break;
    const Layers before_layers = layers(state);
    work_ += step_work_;
    if (!pricer_.price(kind, dims, before_layers, layers(after), edge)) return std::numeric_limits<Picoseconds>::max() / 4;
    total += std::llround(edge.seconds * 1e12);
  }
  return total;
}

void Search::relax(int node, Kind kind, uint64_t dims, State after) {
  // Most can be dismissed before they are priced.
  const bool to_end = keep_arrivals_ || after == target_;
  const auto goal = to_end ? index_.end() : index_.find(target_);
  const Picoseconds left = goal == index_.end() ? 0 : remaining(after);
  const auto too_far = [&](Picoseconds distance) {
    return goal != index_.end() && distance + left >= nodes_[goal->second].distance;
  };
  if (too_far(nodes_[node].distance)) return;
  const auto known = index_.find(after);
  if (complete_ && known != index_.end() && nodes_[known->second].done && !(keep_arrivals_ && after == target_)) return;

  const Layers before_layers = layers(nodes_[node].state);
  PricedStep edge;
  work_ += step_work_;
  if (!pricer_.price(kind, dims, before_layers, layers(after), edge)) return;
  Node next;
  next.state = after;
  next.distance = nodes_[node].distance + std::llround(edge.seconds * 1e12);
  next.collectives = nodes_[node].collectives + (edge.is_local() ? 0 : 1);
  next.steps = nodes_[node].steps + 1;
  next.previous = node;
  next.edge = edge;
  if (!complete_) next.left = known == index_.end() ? plain_way(after) : nodes_[known->second].left;
  if (keep_arrivals_ && after == target_) arrivals_.emplace_back(node, edge);
  if (too_far(next.distance)) return;
  if (known == index_.end()) {
    index_.emplace(after, static_cast<int>(nodes_.size()));
    nodes_.push_back(next);
  } else if ((!complete_ || !nodes_[known->second].done) && next.before(nodes_[known->second])) {
    nodes_[known->second] = next;  // to be visited again, if it was
  }
}

template <typename Becomes>
void Search::add_subsets(Kind kind, int node, const Subset& candidates, Becomes becomes) {
  const size_t n = candidates.size();
  if (n == 0) return;
  const uint64_t all = (uint64_t{1} << n) - 1;
  for (uint64_t set = 1; set <= all; ++set) {
    // On meshes of many dims only single ones and all at once.
    if (n > 4 && set != all && (set & (set - 1)) != 0) continue;
    Subset chosen;
    const State state = nodes_[node].state;
    State after = state;
    bool possible = true;
    for (size_t i = 0; i < n; ++i) {
      if ((set >> i & 1) == 0) continue;
      chosen.push_back(candidates[i]);
      const int choice = becomes(candidates[i]);
      possible &= choice >= 0;
      if (possible) after = with(after, candidates[i], choice);
    }
    if (!possible) continue;
    const uint64_t dims = bits(chosen);
    if (kind == Kind::kAllGather) {
      possible = geometry_.innermost(layers(state), dims);
    } else if (kind != Kind::kAllReduce) {
      const Layers whole = layers(state);
      possible = geometry_.inside(layers(after), whole, dims);
    }
    if (possible) relax(node, kind, dims, after);
  }
}

// Everything on mesh dims `may_change` that can go at once without touching what is Partial, directly between the two parts of
// each rank.
// Concerned are the mesh dims that change, and those that cut a tensor dim after one that changes its cut. Where one of
// them was not cut before, every rank finds all it needs at its own coordinate, so ranks talk along the others only.
bool Search::overlay(State state, uint64_t may_change, State& after, uint64_t& dims) {
  after = state;
  for (size_t i = 0; i < changing_.size(); ++i) {
    const int k = static_cast<int>(i);
    if ((may_change >> changing_[i].mesh_dim & 1) == 0 || changing_[i].choices[choice(state, k)]->is_partial()) continue;
    after = with(after, k, choice(reduced_target_, k));
  }
  if (after == state) return false;
  const Layers old_layers = layers(state);
  const Layers& new_layers = layers(after);
  uint64_t concerned = 0;
  dims = 0;
  for (int64_t m = 0; m < geometry_.ndim(); ++m) {
    bool is_concerned = *new_layers[m] != *old_layers[m];
    for (int64_t earlier = 0; earlier < m && !is_concerned; ++earlier) {
      if ((concerned >> earlier & 1) == 0 || *old_layers[earlier] == *new_layers[earlier]) continue;
      for (const Placement* cut : {old_layers[earlier], new_layers[earlier]}) {
        is_concerned |= cut->is_sharded() &&
                        (geometry_.cuts(old_layers, m, cut->dim()) || geometry_.cuts(new_layers, m, cut->dim()));
      }
    }
    if (!is_concerned) continue;
    concerned |= uint64_t{1} << m;
    if (old_layers[m]->is_sharded()) dims |= uint64_t{1} << m;
  }
  return true;
}

void Search::add_overlay(int node, uint64_t may_change) {
  const State state = nodes_[node].state;
  State after;
  uint64_t dims;
  if (!overlay(state, may_change, after, dims)) return;
  uint64_t gathered = 0;  // it may be the all-gather of what follows
  for (size_t k = 0; k < changing_.size(); ++k) {
    const int then = choice(after, static_cast<int>(k));
    if (then != choice(state, static_cast<int>(k)) && changing_[k].choices[then]->is_replicate()) {
      gathered |= uint64_t{1} << changing_[k].mesh_dim;
    }
  }
  const bool gathers_only = dims != 0 && gathered == dims && changed(state, after) == dims &&
                            geometry_.innermost(layers(state), dims);
  relax(node, dims == 0 ? Kind::kSlice : gathers_only ? Kind::kAllGather : Kind::kAllToAll, dims, after);
}

// Where nothing but fills is left: those of one kind at once.
bool Search::fills(State state, uint64_t& dims, State& after) const {
  Subset chosen;
  after = state;
  for (size_t k = 0; k < changing_.size(); ++k) {
    const int i = static_cast<int>(k);
    if (choice(state, i) == kTo) continue;
    const Placement& to = *changing_[k].choices[kTo];
    if (!changing_[k].choices[choice(state, i)]->is_replicate() || !to.is_partial()) return false;
    if (!chosen.empty() && changing_[chosen[0]].choices[kTo]->reduce_op() != to.reduce_op()) continue;
    chosen.push_back(i);
    after = with(after, i, kTo);
  }
  dims = bits(chosen);
  return !chosen.empty();
}

void Search::expand(int node) {
  const State state = nodes_[node].state;
  const size_t n = changing_.size();
  Subset slices, gathers, partials, helpers;
  bool reduces = false;
  for (size_t k = 0; k < n; ++k) reduces |= changing_[k].choices[choice(state, static_cast<int>(k))]->is_partial();
  for (size_t k = 0; k < n; ++k) {
    const int i = static_cast<int>(k);
    const int now = choice(state, i);
    const Placement& p = *changing_[k].choices[now];
    if (p.is_replicate() && changing_[k].choices.size() > 3) helpers.push_back(i);
    if (p.is_sharded() && (now != kTo || (reduces && p == *changing_[k].choices[kFrom]))) gathers.push_back(i);
    if (now == kTo) continue;
    const Placement& to = *changing_[k].choices[kTo];
    if (p.is_replicate() && to.is_sharded()) slices.push_back(i);
    if (p.is_partial()) partials.push_back(i);
  }
  const auto replicate = [&](int i) { return replicated(i); };

  State filled;
  uint64_t filled_dims;
  if (fills(state, filled_dims, filled)) return relax(node, Kind::kFill, filled_dims, filled);
  add_overlay(node, kAll);
  if (pricer_.has_two_levels() && n > 1) {  // what stays within a node, apart
    for (const Changing& c : changing_) add_overlay(node, uint64_t{1} << c.mesh_dim);
  }
  const Layers now = layers(state);
  const auto landing = [&](int i, int64_t d) {
    const Changing& c = changing_[i];
    int64_t inner = 1;  // parts that later mesh dims cut this one's into
    for (int64_t later = c.mesh_dim + 1; later < geometry_.ndim(); ++later) {
      if (geometry_.cuts(now, later, d)) inner *= geometry_.mesh_size(later);
    }
    for (size_t k = 0; k < c.choices.size(); ++k) {
      const Placement& p = *c.choices[k];
      if (k != kFrom && p.is_sharded_on(d) && (p.is_shard() ? 1 : p.split_factor()) == inner) return static_cast<int>(k);
    }
    return -1;
  };
  for (int64_t d = 0; d < geometry_.tensor_ndim() && (reduces || leaves_nodes_); ++d) {
    add_subsets(Kind::kSlice, node, helpers, [&](int i) { return landing(i, d); });
  }
  while (!partials.empty()) {  // by kind of reduction
    const ReduceOp op = changing_[partials[0]].choices[kFrom]->reduce_op();
    Subset same, others;
    for (int i : partials) (changing_[i].choices[kFrom]->reduce_op() == op ? same : others).push_back(i);
    partials = others;
    add_subsets(Kind::kAllReduce, node, same, replicate);
    add_subsets(Kind::kReduceScatter, node, same,
                [&](int i) { return changing_[i].choices[kTo]->is_sharded() ? kTo : -1; });
    for (int64_t d = 0; d < geometry_.tensor_ndim(); ++d) {
      add_subsets(Kind::kReduceScatter, node, same, [&](int i) { return landing(i, d); });
    }
  }
  add_subsets(Kind::kAllGather, node, gathers, replicate);
  add_subsets(Kind::kSlice, node, slices, [](int) { return kTo; });
}

// One way on from any state but the target: what is Partial and does not stay so is reduced, by kind, then goes over, then come
// fills.
bool Search::plain_step(State state, Kind& kind, uint64_t& dims, State& after) {
  Subset same;
  after = state;
  for (size_t k = 0; k < changing_.size(); ++k) {
    const int i = static_cast<int>(k);
    const Placement& p = *changing_[k].choices[choice(state, i)];
    if (!p.is_partial() || choice(state, i) != kFrom) continue;
    if (!same.empty() && changing_[same[0]].choices[kFrom]->reduce_op() != p.reduce_op()) continue;
    same.push_back(i);
    after = with(after, i, replicated(i));
  }
  if (!same.empty()) {
    kind = Kind::kAllReduce;
    dims = bits(same);
    if (complete_) return true;
    State scattered = state;
    for (int i : same) {
      if (!changing_[i].choices[kTo]->is_sharded()) return true;
      scattered = with(scattered, i, kTo);
    }
    const Layers whole = layers(state);
    if (geometry_.inside(layers(scattered), whole, dims)) {
      kind = Kind::kReduceScatter;
      after = scattered;
    }
    return true;
  }
  if (overlay(state, kAll, after, dims)) {
    kind = dims == 0 ? Kind::kSlice : Kind::kAllToAll;
    return true;
  }
  kind = Kind::kFill;
  return fills(state, dims, after);
}

State Search::start_state() const {
  State state = 0;
  for (size_t i = 0; i < changing_.size(); ++i) {
    const bool stays = *changing_[i].choices[kFrom] == *changing_[i].choices[kTo];
    state = with(state, static_cast<int>(i), stays ? kTo : kFrom);
  }
  return state;
}

Picoseconds Search::plain_length() { return plain_way(start_state()); }

// The start, and a path that is nearly always there. Its length bounds the search.
void Search::seed() {
  nodes_.reserve(8);
  Node start;
  start.state = start_state();
  nodes_.push_back(start);
  index_[start.state] = 0;
  for (State state = start.state; !keep_arrivals_ && state != target_;) {
    Kind kind = Kind::kSlice;
    State after;
    uint64_t dims;
    if (!plain_step(state, kind, dims, after)) return;
    if (complete_ && kind == Kind::kFill) return;  // changes no lengths
    relax(index_.at(state), kind, dims, after);
    if (!index_.contains(after)) return;
    state = after;
  }
}

// Of the nodes that are not done, -1 if all are. Where only some are visited the target is none of them: ways to it may become
// shorter to the end.
int Search::nearest() const {
  int nearest = -1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!complete_ && nodes_[i].state == target_) continue;
    if (!nodes_[i].done && (nearest < 0 || nodes_[i].before(nodes_[nearest]))) nearest = static_cast<int>(i);
  }
  return nearest;
}

bool Search::may_stop() const {
  if (complete_ || work_ < kMaxWork) return false;
  return index_.contains(target_) || work_ >= kMaxWorkWithin;
}

bool Search::run(std::vector<RedistributeStep>& steps) {
  seed();
  for (;;) {
    const int next = nearest();
    const auto goal = index_.find(target_);
    const bool stops = next < 0 || may_stop();
    if (stops && (complete_ || goal == index_.end())) return false;
    if (stops || nodes_[next].state == target_) {
      steps = path_to(goal->second);
      return true;
    }
    nodes_[next].done = true;
    expand(next);
  }
}

std::vector<RedistributeStep> Search::path_to(int node, const PricedStep* last) {
  std::vector<std::pair<const PricedStep*, State>> edges;  // and where they lead, the last one first
  if (last != nullptr) edges.emplace_back(last, target_);
  for (; nodes_[node].previous >= 0; node = nodes_[node].previous) edges.emplace_back(&nodes_[node].edge, nodes_[node].state);
  std::vector<RedistributeStep> steps(edges.size());
  Placements at = placements(nodes_[0].state);
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [edge, state] = edges[edges.size() - 1 - i];
    RedistributeStep& step = steps[i];
    step.kind = edge->kind;
    step.op = edge->op;
    step.bytes = edge->bytes;
    step.peak_bytes = edge->peak_bytes;
    step.chunks = edge->chunks;
    step.seconds = edge->seconds;
    for (int64_t m = 0; m < geometry_.ndim(); ++m) {
      if ((edge->dims >> m & 1) != 0) step.dims.push_back(m);
    }
    if (step.kind == Kind::kSlice && step.dims.empty()) {
      for (const Changing& c : changing_) step.dims.push_back(c.mesh_dim);
    }
    step.before = std::move(at);
    at = placements(state);
    step.after = at;
    if (pricer_.leaves_buffers_out() && !edge->is_local()) {
      step.peak_bytes = pricer_.peak_with_buffers(*edge, layers_of(step.before), layers_of(step.after));
    }
  }
  return steps;
}

std::vector<Route> Search::all_arrivals() {
  keep_arrivals_ = true;
  seed();
  for (;;) {  // to the end: nothing is pruned
    const int next = nearest();
    if (next < 0 || nodes_.size() > kMaxArrivals || may_stop()) break;
    nodes_[next].done = true;
    if (nodes_[next].state != target_) expand(next);
  }
  std::vector<Route> routes;
  for (const auto& [node, edge] : arrivals_) {
    Route& route = routes.emplace_back();
    route.steps = path_to(node, &edge);
    for (const RedistributeStep& step : route.steps) {
      route.bytes += step.bytes;
      route.seconds += step.seconds;
      route.peak_bytes = std::max(route.peak_bytes, step.peak_bytes);
    }
  }
  std::stable_sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) { return a.seconds < b.seconds; });
  return routes;
}

// `from` after the changes that cost nothing.
Placements relabelled(const DeviceMesh& mesh, Placements from, const Placements& to) {
  for (size_t m = 0; m < from.size(); ++m) {
    const bool valid_addends = from[m].is_mask_partial() && to[m] == Partial(from[m].reduce_op());
    if (mesh.shape()[m] == 1 || valid_addends) from[m] = to[m];
  }
  return from;
}

// `refused`: as Search::least_refused().
bool find_steps(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& start, const Placements& to,
                const CostModel& cost, const Limits& limits, bool complete, std::vector<RedistributeStep>& steps, int64_t& refused) {
  Placements middle = start;
  int64_t changing = 0;
  for (size_t m = 0; m < to.size(); ++m) {
    if (start[m] == to[m] || ++changing > kMaxChanging) continue;
    middle[m] = to[m].is_partial() ? Replicate() : to[m];
  }
  if (changing <= kMaxChanging) {
    Search search(mesh, meta, start, to, cost, limits, /*helpers=*/true, complete);
    const bool found = search.run(steps);
    if (!found) refused = search.least_refused();
    return found;
  }
  if (middle == start) {  // fills are left, of so many dims that they go one kind at a time
    for (size_t m = 0, filled = 0; m < to.size() && filled < kMaxChanging; ++m) {
      if (start[m] != to[m]) middle[m] = to[m], ++filled;
    }
  }
  // More than a search can tell apart: some of them first.
  std::vector<RedistributeStep> rest;
  if (!find_steps(mesh, meta, start, middle, cost, limits, complete, steps, refused) ||
      !find_steps(mesh, meta, middle, to, cost, limits, complete, rest, refused)) {
    return false;
  }
  steps.insert(steps.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  return true;
}

}  // namespace

double least_seconds(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost) {
  const Placements start = relabelled(mesh, from, to);
  if (start == to || meta.numel() == 0) return 0;
  const LayoutGeometry geometry(mesh.shape(), meta);
  const Placement replicate;
  const Layers before = layers_of(start);
  Layers after = layers_of(to);
  double reducing = 1, least_part = static_cast<double>(meta.bytes()), average = least_part;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto n = static_cast<double>(mesh.size(m));
    if (start[m] != to[m] && start[m].is_partial()) reducing *= n;
    if (start[m] != to[m] && to[m].is_partial()) after[m] = &replicate;  // filled, last
    if (after[m]->is_sharded()) average /= n;
    if (!after[m]->is_partial()) least_part /= n;
  }
  const auto irregular = [&](int64_t size) { return size % mesh.size() != 0; };
  const bool visits = std::any_of(meta.sizes.begin(), meta.sizes.end(), irregular);
  int64_t bytes = reducing > 1 || visits ? geometry.part_bytes(after) - geometry.part_bytes(before)
                                         : geometry.received_bytes(before, after);
  if (reducing == 1) return bytes > 0 ? cost.least(bytes) : 0;
  bytes = std::max(bytes, static_cast<int64_t>(least_part * (reducing - 2) + average - kRounding));  // as remaining()
  return cost.least(std::max<int64_t>(0, bytes));
}

double plain_seconds(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost) {
  const Placements start = relabelled(mesh, from, to);
  if (start == to || meta.numel() == 0) return 0;
  int64_t changing = 0;
  for (size_t m = 0; m < start.size(); ++m) changing += start[m] != to[m] ? 1 : 0;
  const Limits none;
  if (changing > kMaxChanging) return least_seconds(mesh, meta, from, to, cost);
  return static_cast<double>(Search(mesh, meta, start, to, cost, none, /*helpers=*/false).plain_length()) * 1e-12;
}

bool find_mesh_steps(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost, const Limits& limits, std::vector<RedistributeStep>& steps, bool complete) {
  steps.clear();
  const Placements start = relabelled(mesh, from, to);
  if (start == to) return true;
  if (meta.numel() > 0) {
    int64_t refused = 0;
    return find_steps(mesh, meta, start, to, cost, limits, complete, steps, refused);
  }
  RedistributeStep& step = steps.emplace_back();
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (start[m] != to[m]) step.dims.push_back(m);
  }
  step.before = start;
  step.after = to;
  return true;
}

int64_t least_mesh_peak(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                        const CostModel& cost, int64_t fails) {
  const Placements start = relabelled(mesh, from, to);
  std::vector<RedistributeStep> steps;
  int64_t works = std::numeric_limits<int64_t>::max();
  fails = std::max<int64_t>(0, fails);
  for (Limits limits; works - fails > 1; limits.peak_bytes = fails + (works - fails) / 2) {
    int64_t refused = 0;
    if (find_steps(mesh, meta, start, to, cost, limits, /*complete=*/false, steps, refused)) {
      works = 0;
      for (const RedistributeStep& step : steps) works = std::max(works, step.peak_bytes);
    } else {
      fails = std::max(limits.peak_bytes, std::min(refused, works) - 1);
    }
  }
  return works;
}

RedistributePlan plan_redistribution(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from,
                                     const Placements& to, const PlanOptions& options) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(from.size()) == mesh.ndim() && from.size() == to.size(),
                    "[redistribute] from ", to_string(from), " to ", to_string(to), " on ", mesh.to_string(),
                    ": give one placement per mesh dim");
  RedistributePlan plan;
  plan.tensor = meta;
  plan.from = Layout(mesh.idle(), from);
  plan.to = Layout(mesh.idle(), to);
  plan.cost = options.cost ? options.cost : cost_model(mesh.world());
  plan.limits = options.limits;
  plan.schedule = make_schedule_slot();
  if (!find_mesh_steps(mesh, meta, from, to, *plan.cost, plan.limits, plan.steps, options.complete)) {
    TORCH_CHECK_VALUE(false, "[redistribute] ", to_string(from), " -> ", to_string(to), " of ", to_string(meta), " on ",
                      mesh.to_string(), ": limits.peak_bytes is ", plan.limits.peak_bytes, ", but no route needs less than ",
                      least_mesh_peak(mesh, meta, from, to, *plan.cost, plan.limits.peak_bytes),
                      " bytes on a rank; allow as many");
  }
  if (plan.steps.empty()) plan.peak_bytes = LayoutGeometry(mesh.shape(), meta).part_bytes(layers_of(to));
  for (const RedistributeStep& step : plan.steps) {
    plan.bytes += step.bytes;
    plan.seconds += step.seconds;
    plan.peak_bytes = std::max(plan.peak_bytes, step.peak_bytes);
  }
  return plan;
}

std::vector<Route> routes(const RedistributePlan& plan) {
  if (plan.from == plan.to) return {};
  if (plan.from.is_boxes() || plan.to.is_boxes() || plan.from.mesh() != plan.to.mesh()) return transfer_routes(plan);
  const DeviceMesh& mesh = plan.from.mesh();
  const Placements start = relabelled(mesh, plan.from.placements(), plan.to.placements());
  if (start == plan.to.placements() || plan.tensor.numel() == 0) return {};
  int64_t changing = 0;
  for (size_t m = 0; m < start.size(); ++m) changing += start[m] != plan.to.placements()[m] ? 1 : 0;
  if (changing > kMaxChanging) return {};
  const Limits none;  // what a limit rules out is shown, too. Helpers would give variants of every route.
  std::vector<Route> list = Search(mesh, plan.tensor, start, plan.to.placements(), *plan.cost, none, /*helpers=*/false, changing <= static_cast<int64_t>(kMaxComplete)).all_arrivals();
  const auto is_plan = [&](const Route& route) {
    const auto same = [](const RedistributeStep& a, const RedistributeStep& b) { return a.kind == b.kind && a.after == b.after; };
    return std::equal(route.steps.begin(), route.steps.end(), plan.steps.begin(), plan.steps.end(), same);
  };
  list.erase(std::remove_if(list.begin(), list.end(), is_plan), list.end());
  list.insert(list.begin(), {plan.steps, plan.bytes, plan.peak_bytes, plan.seconds});
  return list;
}

}  // namespace dtensor
