#include "plan/search/step_search.h"

#include <algorithm>
#include <limits>

namespace dtensor::internal {
namespace {

constexpr int64_t kMaxWithHelpers = 4;             // mesh dims, if some only help to reduce
constexpr size_t kMaxArrivals = 2000;              // states visited for routes that are only shown
constexpr int64_t kMaxWork = 1000;                 // for other searches: priced steps, enough for nearly the same plans
constexpr int64_t kMaxWorkWithin = 64 * kMaxWork;  // while no route within the limits was found

}  // namespace

// The tensor dims to which a Partial may be scattered on the way: only one of several equivalent ones.
MeshDims StepSearch::landing_dims_of(const DeviceMesh& mesh, const Placements& from, const Placements& to) const {
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

// Adds the Shards, and StridedShards, that a mesh dim may have on the way.
void StepSearch::add_landings(const DeviceMesh& mesh, const Placements& from, const Placements& to, Changing& c,
                              const MeshDims& landing_dims) {
  const auto m = static_cast<size_t>(c.mesh_dim);
  for (int64_t d : landing_dims) {
    if (geometry_.size(d) < mesh.shape()[m]) continue;
    // Into how many parts later mesh dims cut this one's: as in `from`, as in `to`, or, if there is no other tensor dim
    // to share the work along, as many as possible.
    const int num_cuts = landing_dims.size() == 1 ? 3 : 2;
    int64_t inner[3] = {1, 1, 1};
    for (size_t later = m + 1; later < from.size(); ++later) {
      const bool cuts[3] = {from[later].is_sharded_on(d), to[later].is_sharded_on(d), !from[later].is_partial()};
      for (int i = 0; i < 3; ++i) inner[i] *= cuts[i] ? mesh.shape()[later] : 1;
    }
    for (int i = 0; i < num_cuts; ++i) {
      const Placement landing = inner[i] == 1 ? Shard(d) : StridedShard(d, inner[i]);
      const auto same = [&](const Placement* choice) { return *choice == landing; };
      if (landing == to[m] || std::any_of(c.choices.begin() + 3, c.choices.end(), same)) continue;
      if (c.choices.size() == 16) break;
      landings_.push_back(landing);
      c.choices.push_back(&landings_.back());
    }
  }
}

StepSearch::StepSearch(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                       const CostModel& cost, const Limits& limits, bool helpers, bool complete)
    : pricer_(mesh, meta, cost, limits), geometry_(pricer_.geometry), cost_(cost), layout_(placement_pointers(from)) {
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
    // While others reduce, ranks with copies can share the work, and shards may be on other dims. The same holds for
    // the ranks of a node with copies of data from other nodes.
    const bool shares = leaves_nodes_ && (between_nodes >> m & 1) == 0 && from[m].is_replicate();
    const bool helps = helpers && (reduces || shares) && !from[m].is_partial() && mesh.shape()[m] > 1;
    if (from[m] == to[m] && !(helps && changing < kMaxWithHelpers)) continue;
    changing += from[m] == to[m] ? 1 : 0;
    Changing& c = changing_.emplace_back();
    c.mesh_dim = static_cast<int64_t>(m);
    c.choices = {&to[m], &from[m], &replicate_};
    if (!from[m].is_partial() && !(helps && from[m].is_replicate())) continue;
    add_landings(mesh, from, to, c, landing_dims);
  }
  for (size_t i = 0; i < changing_.size(); ++i) {
    if (changing_[i].choices[kTo]->is_partial())
      reduced_target_ = with(reduced_target_, static_cast<int>(i), kReplicate);
  }
  complete_ = complete || (helpers && changing_.size() <= kMaxComplete);
  // For irregular parts, pricing visits ranks.
  const auto irregular = [&](int64_t size) { return size % mesh.size() != 0; };
  if (std::any_of(meta.sizes.begin(), meta.sizes.end(), irregular)) step_work_ += mesh.size() / 16;
  const PlacementPointers& target = layout_of(reduced_target_);
  target_bytes_ = geometry_.part_bytes(target);
  least_part_ = target_average_ = static_cast<double>(meta.bytes());
  for (int64_t m = 0; m < geometry_.ndim(); ++m) {
    if (target[m]->is_sharded()) target_average_ /= static_cast<double>(geometry_.mesh_size(m));
    if (!target[m]->is_partial()) least_part_ /= static_cast<double>(geometry_.mesh_size(m));
  }
}

const PlacementPointers& StepSearch::layout_of(State state) {
  for (size_t i = 0; i < changing_.size(); ++i) {
    layout_[changing_[i].mesh_dim] = changing_[i].choices[choice(state, static_cast<int>(i))];
  }
  return layout_;
}

Placements StepSearch::placements(State state) {
  Placements list;
  for (const Placement* p : layout_of(state)) list.push_back(*p);
  return list;
}

// A lower bound of the time from `state` to the target. Elements that parts lack must be received. A reduction over n
// ranks, at best of parts that all other ranks W / n share, receives at least N / W * (n - 1) and leaves at least N /
// W, on average.
Picoseconds StepSearch::remaining(State state) {
  double reducing = 1;
  for (size_t i = 0; i < changing_.size(); ++i) {
    const Changing& c = changing_[i];
    if (choice(state, static_cast<int>(i)) == kFrom && c.choices[kFrom]->is_partial()) {
      reducing *= static_cast<double>(geometry_.mesh_size(c.mesh_dim));
    }
  }
  const int64_t lacking = target_bytes_ - geometry_.part_bytes(layout_of(state));
  if (reducing == 1 && lacking <= 0) return 0;
  double bytes = static_cast<double>(lacking);
  if (reducing > 1) bytes = std::max(bytes, least_part_ * (reducing - 2) + target_average_ - kRounding);
  return picoseconds(cost_.least(std::max<int64_t>(reducing > 1 ? 0 : 1, static_cast<int64_t>(bytes)))) - 1;
}

// The total time of the steps of plain_step(), one after the other.
Picoseconds StepSearch::plain_way(State state) {
  Picoseconds total = 0;
  Kind kind = Kind::kSlice;
  uint64_t dims = 0;
  PricedStep edge;
  for (State after; state != target_; state = after) {
    if (!plain_step(state, kind, dims, after)) break;
    const PlacementPointers before_layout = layout_of(state);
    work_ += step_work_;
    if (!pricer_.price(kind, dims, before_layout, layout_of(after), edge))
      return std::numeric_limits<Picoseconds>::max() / 4;
    total += picoseconds(edge.seconds);
  }
  return total;
}

void StepSearch::relax(int node, Kind kind, uint64_t dims, State after) {
  // Most edges can be rejected before they are priced.
  const bool to_end = keep_arrivals_ || after == target_;
  const auto goal = to_end ? index_.end() : index_.find(target_);
  const Picoseconds left = goal == index_.end() ? 0 : remaining(after);
  const auto too_far = [&](Picoseconds distance) {
    return goal != index_.end() && distance + left >= nodes_[goal->second].distance;
  };
  if (too_far(nodes_[node].distance)) return;
  const auto known = index_.find(after);
  if (complete_ && known != index_.end() && nodes_[known->second].done && !(keep_arrivals_ && after == target_)) return;

  const PlacementPointers before_layout = layout_of(nodes_[node].state);
  PricedStep edge;
  work_ += step_work_;
  if (!pricer_.price(kind, dims, before_layout, layout_of(after), edge)) return;
  Node next;
  next.state = after;
  next.distance = nodes_[node].distance + picoseconds(edge.seconds);
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

StepSearch::State StepSearch::start_state() const {
  State state = 0;
  for (size_t i = 0; i < changing_.size(); ++i) {
    const bool stays = *changing_[i].choices[kFrom] == *changing_[i].choices[kTo];
    state = with(state, static_cast<int>(i), stays ? kTo : kFrom);
  }
  return state;
}

Picoseconds StepSearch::plain_length() { return plain_way(start_state()); }

// The start, and a path that nearly always exists. Its length bounds the search.
void StepSearch::seed() {
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

// The nearest node that is not done, -1 if all are. In an incomplete search the target never counts: paths to it may
// become shorter until the end.
int StepSearch::nearest() const {
  int nearest = -1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!complete_ && nodes_[i].state == target_) continue;
    if (!nodes_[i].done && (nearest < 0 || nodes_[i].before(nodes_[nearest]))) nearest = static_cast<int>(i);
  }
  return nearest;
}

bool StepSearch::may_stop() const {
  if (complete_ || work_ < kMaxWork) return false;
  return index_.contains(target_) || work_ >= kMaxWorkWithin;
}

bool StepSearch::run(std::vector<RedistributeStep>& steps) {
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

std::vector<RedistributeStep> StepSearch::path_to(int node, const PricedStep* last) {
  std::vector<std::pair<const PricedStep*, State>> edges;  // and their targets, the last one first
  if (last != nullptr) edges.emplace_back(last, target_);
  for (; nodes_[node].previous >= 0; node = nodes_[node].previous)
    edges.emplace_back(&nodes_[node].edge, nodes_[node].state);
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
      step.peak_bytes =
          pricer_.peak_with_buffers(*edge, placement_pointers(step.before), placement_pointers(step.after));
    }
  }
  return steps;
}

std::vector<Route> StepSearch::all_arrivals() {
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
    route.add_up();
  }
  std::stable_sort(routes.begin(), routes.end(), [](const Route& a, const Route& b) { return a.seconds < b.seconds; });
  return routes;
}

}  // namespace dtensor::internal
