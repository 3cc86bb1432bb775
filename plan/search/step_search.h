// The search for the cheapest steps between two layouts on one mesh, over the graph described in
// redistribute_planner.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "plan/search/layout_geometry.h"
#include "plan/search/step_pricer.h"

namespace dtensor::internal {

inline constexpr int64_t kMaxChanging = 15;  // mesh dims that a state can encode: four bits each
inline constexpr size_t kMaxComplete = 3;    // a search with no more changing mesh dims is always complete
inline constexpr double kRounding = 16;      // bytes that all steps together may round down

class StepSearch {
 public:
  // Without `helpers`, only the mesh dims that change take part.
  StepSearch(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
             const CostModel& cost, const Limits& limits, bool helpers = true, bool complete = false);

  // The steps of the shortest path; false if the limits leave none.
  bool run(std::vector<RedistributeStep>& steps);
  // The time of the plain way: all Partials of one reduction at once, then dim by dim. REQUIRES: not complete.
  Picoseconds plain_length();
  // Complete paths, one for each last step into the target, the shortest first.
  std::vector<Route> all_arrivals();
  // After run() found nothing: smaller limits than this have no route, either.
  int64_t least_refused() const { return pricer_.least_refused(); }

 private:
  using Kind = RedistributeStep::Kind;
  // A layout as a number: four bits per changing mesh dim, the index of its placement.
  using State = uint64_t;
  static constexpr uint64_t kAll = ~uint64_t{0};  // mesh dims

  struct Node {
    State state = 0;
    Picoseconds distance = 0;
    // In an incomplete search: the time of a plain way on, so that good states come first.
    Picoseconds left = 0;
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
  // The choices of a mesh dim that changes, followed by Shards that a Partial may be scattered to.
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
  void add_landings(const DeviceMesh& mesh, const Placements& from, const Placements& to, Changing& c,
                    const MeshDims& landing_dims);
  const PlacementPointers& layout_of(State state);
  uint64_t bits(const Subset& subset) const {
    uint64_t dims = 0;
    for (int i : subset) dims |= uint64_t{1} << changing_[i].mesh_dim;
    return dims;
  }

  // Mesh dims, a bit each.
  uint64_t changed(State a, State b) const {
    uint64_t dims = 0;
    for (size_t k = 0; k < changing_.size(); ++k) {
      if (choice(a, static_cast<int>(k)) != choice(b, static_cast<int>(k)))
        dims |= uint64_t{1} << changing_[k].mesh_dim;
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
  PlacementPointers layout_;  // what layout_of() returned last; mesh dims that do not change have one placement
  State target_ = 0;
  State reduced_target_ = 0;          // the target before fills
  bool leaves_nodes_ = false;         // shards change on a mesh dim between nodes
  int64_t target_bytes_ = 0;          // of the largest part of it
  double target_average_ = 0;         // bytes of its parts
  double least_part_ = 0;             // the average if all mesh dims cut except those that stay Partial
  bool complete_ = true;              // search to the end, however long that takes
  int64_t work_ = 0, step_work_ = 1;  // in units of quickly priced steps
  std::vector<Node> nodes_;
  absl::flat_hash_map<State, int> index_;
  bool keep_arrivals_ = false;
  std::vector<std::pair<int, PricedStep>> arrivals_;
};

}  // namespace dtensor::internal
