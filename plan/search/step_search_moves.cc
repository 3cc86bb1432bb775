// The edges of the search: the single steps from a layout.
#include <utility>

#include "plan/search/step_search.h"

namespace dtensor::internal {

template <typename Becomes>
void StepSearch::add_subsets(Kind kind, int node, const Subset& candidates, Becomes becomes) {
  const size_t n = candidates.size();
  if (n == 0) return;
  const uint64_t all = (uint64_t{1} << n) - 1;
  for (uint64_t set = 1; set <= all; ++set) {
    // On meshes of many dims only single dims and all at once.
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
    const PlacementPointers before = layout_of(state);
    if (kind == Kind::kAllGather) {
      possible = geometry_.inside(before, layout_of(after), dims);
    } else if (kind != Kind::kAllReduce) {
      possible = geometry_.inside(layout_of(after), before, dims);
    }
    if (possible) relax(node, kind, dims, after);
  }
}

// All changes on mesh dims `may_change` that can be made at once without affecting Partials, directly between the two
// parts of each rank. The mesh dims involved are those that change, and those that cut a tensor dim after one that
// changes its cut. If one of them did not cut before, every rank finds all that it needs at its own coordinate, so that
// ranks communicate only along the others.
bool StepSearch::overlay(State state, uint64_t may_change, State& after, uint64_t& dims) {
  after = state;
  for (size_t i = 0; i < changing_.size(); ++i) {
    const int k = static_cast<int>(i);
    if ((may_change >> changing_[i].mesh_dim & 1) == 0 || changing_[i].choices[choice(state, k)]->is_partial())
      continue;
    after = with(after, k, choice(reduced_target_, k));
  }
  if (after == state) return false;
  const PlacementPointers old_layout = layout_of(state);
  const PlacementPointers& new_layout = layout_of(after);
  uint64_t concerned = 0;
  dims = 0;
  for (int64_t m = 0; m < geometry_.ndim(); ++m) {
    bool is_concerned = *new_layout[m] != *old_layout[m];
    for (int64_t earlier = 0; earlier < m && !is_concerned; ++earlier) {
      if ((concerned >> earlier & 1) == 0 || *old_layout[earlier] == *new_layout[earlier]) continue;
      for (const Placement* cut : {old_layout[earlier], new_layout[earlier]}) {
        is_concerned |= cut->is_sharded() &&
                        (geometry_.cuts(old_layout, m, cut->dim()) || geometry_.cuts(new_layout, m, cut->dim()));
      }
    }
    if (!is_concerned) continue;
    concerned |= uint64_t{1} << m;
    if (old_layout[m]->is_sharded()) dims |= uint64_t{1} << m;
  }
  return true;
}

void StepSearch::add_overlay(int node, uint64_t may_change) {
  const State state = nodes_[node].state;
  State after;
  uint64_t dims;
  if (!overlay(state, may_change, after, dims)) return;
  uint64_t gathered = 0;  // it may be the all-gather for the following dims
  for (size_t k = 0; k < changing_.size(); ++k) {
    const int then = choice(after, static_cast<int>(k));
    if (then != choice(state, static_cast<int>(k)) && changing_[k].choices[then]->is_replicate()) {
      gathered |= uint64_t{1} << changing_[k].mesh_dim;
    }
  }
  const bool gathers_only =
      dims != 0 && gathered == dims && changed(state, after) == dims && geometry_.innermost(layout_of(state), dims);
  relax(node, dims == 0 ? Kind::kSlice : gathers_only ? Kind::kAllGather : Kind::kAllToAll, dims, after);
}

// If only fills remain: those of one kind at once.
bool StepSearch::fills(State state, uint64_t& dims, State& after) const {
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

void StepSearch::expand(int node) {
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
  if (pricer_.has_two_levels() && n > 1) {  // changes within a node, separately
    for (const Changing& c : changing_) add_overlay(node, uint64_t{1} << c.mesh_dim);
  }
  const PlacementPointers now = layout_of(state);
  const auto landing = [&](int i, int64_t d) {
    const Changing& c = changing_[i];
    int64_t inner = 1;  // parts that later mesh dims cut this one's into
    for (int64_t later = c.mesh_dim + 1; later < geometry_.ndim(); ++later) {
      if (geometry_.cuts(now, later, d)) inner *= geometry_.mesh_size(later);
    }
    for (size_t k = 0; k < c.choices.size(); ++k) {
      const Placement& p = *c.choices[k];
      if (k != kFrom && p.is_sharded_on(d) && (p.is_shard() ? 1 : p.split_factor()) == inner)
        return static_cast<int>(k);
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

// One step from any state but the target: Partials that do not stay are reduced, by kind; then shards change; then
// fills.
bool StepSearch::plain_step(State state, Kind& kind, uint64_t& dims, State& after) {
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
    const PlacementPointers whole = layout_of(state);
    if (geometry_.inside(layout_of(scattered), whole, dims)) {
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

}  // namespace dtensor::internal
