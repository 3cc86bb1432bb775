// Prices one step of a redistribution: bytes, memory, time, and the rounds that a limit requires.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "comm/communicator.h"
#include "plan/cost_model.h"
#include "plan/redistribute_plan.h"
#include "plan/search/layout_geometry.h"

namespace dtensor::internal {

inline constexpr int64_t kMaxRounds = 1024;  // of one exchange

// A step that the search considers: a RedistributeStep without its layouts.
struct PricedStep {
  RedistributeStep::Kind kind = RedistributeStep::Kind::kSlice;
  uint64_t dims = 0;  // mesh dims, a bit each
  ReduceOp op = ReduceOp::kSum;
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
  int64_t chunks = 1;
  double seconds = 0;

  bool is_local() const { return kind == RedistributeStep::Kind::kSlice || kind == RedistributeStep::Kind::kFill; }
};

// For steps between two layouts on one mesh. Its arguments must outlive it.
class StepPricer {
 public:
  StepPricer(const DeviceMesh& mesh, const TensorMeta& meta, const CostModel& cost, const Limits& limits)
      : geometry(mesh.shape(), meta),
        meta_(meta),
        communicator_(mesh.world().communicator()),
        cost_(cost),
        limits_(limits),
        between_nodes_(mesh.dims_between_nodes(cost.ranks_per_node)) {}

  // False if it cannot stay within the limits.
  bool price(RedistributeStep::Kind kind, uint64_t dims, const PlacementPointers& before,
             const PlacementPointers& after, PricedStep& edge);

  // Its peak with the buffers of messages. Skipped without a limit: it takes as long as everything else.
  int64_t peak_with_buffers(const PricedStep& edge, const PlacementPointers& before,
                            const PlacementPointers& after) const;
  bool leaves_buffers_out() const { return cost_.uses_staging_buffers && !limits_.any(); }

  // The smallest limit under which a rejected step would be accepted. Below it, the same steps are rejected.
  int64_t least_refused() const { return least_refused_; }

  uint64_t between_nodes() const { return between_nodes_; }
  // Whether some mesh dims are within a node and others are not.
  bool has_two_levels() const { return between_nodes_ != 0 && between_nodes_ != (uint64_t{1} << geometry.ndim()) - 1; }

  const LayoutGeometry geometry;

 private:
  PricedStep moved(RedistributeStep::Kind kind, uint64_t dims, const PlacementPointers& before,
                   const PlacementPointers& after, int64_t group, int64_t in, int64_t out) const;
  void split_into_rounds(const PlacementPointers& before, const PlacementPointers& after, int64_t group,
                         PricedStep& edge);
  // Whether a step that needs `peak_bytes` at least may be taken.
  bool is_allowed(int64_t peak_bytes) {
    if (peak_bytes <= limits_.max_bytes) return true;
    least_refused_ = std::min(least_refused_, peak_bytes);
    return false;
  }

  const TensorMeta& meta_;
  const Communicator& communicator_;  // of the mesh's world
  const CostModel& cost_;
  const Limits& limits_;
  const uint64_t between_nodes_;
  int64_t least_refused_ = std::numeric_limits<int64_t>::max();
};

}  // namespace dtensor::internal
