// Windows: what ranks read of a sharded tensor through a slice, or a slice of slices, and where they read it from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/comm_event.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/plan.h"

namespace dtensor::internal {

// A slice as a window of a tensor, the root: which elements of the root every rank needs, and the plan to fetch them.
// The same on every rank.
//
// Of u of [64, 64], S(0)S(1) on 4 x 4 ranks, the window u[2:, 1:-1] begins two rows and a column after the part of each
// rank, so that ranks lack two rows of the next one, and a column.
struct SliceWindow {
  struct Cut {
    int64_t dim;                      // a sharded dim of the root
    std::vector<IndexRange> reached;  // indices of the root, by a rank's position along the mesh dims that cut it
  };
  Shape start, step;  // per dim of the root
  // Ascending. nullopt: the slice has another layout than the root, or some rank holds none of it, or several runs; it
  // is fetched alone then, and from the tensor that it was taken of.
  std::optional<std::vector<Cut>> cuts;
  std::vector<int64_t> cutting;          // mesh dims that cut the sliced dims
  std::shared_ptr<const HaloPlan> plan;  // from the root
  // Every rank already holds half of its part of the window, and the window covers more than half of the root along the
  // dims that are not sharded. Otherwise, as for one of many time steps, it may be better to fetch an intermediate
  // slice and slice that.
  bool is_near = true;
};
using SliceWindowPtr = std::shared_ptr<const SliceWindow>;

// Whether a read of `window` of `t` fetches, or finds, a ghost region that was declared for `t`.
bool has_declared_region(const at::Tensor& t, const SliceWindow& window);

// Writes the window's present values to `parts`: from the ghost region of `root`, which is fetched and cached
// (dtensor/layout_cache/ghost_region.h) if it was declared (dtensor/ghost_width.h) and ranks lack elements; else in an
// exchange for this window alone.
void read_window(const at::Tensor& root, const SliceWindow& window, const CommCause& cause, const RankTensors& parts);

}  // namespace dtensor::internal
