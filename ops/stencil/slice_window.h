// A slice, or a slice of slices, as a window of its base: which elements of the base every rank needs, and the plan to
// fetch them. Pure, the same on every rank.
//
// Of u of [64, 64], S(0)S(1) on 4 x 4 ranks, the window u[2:, 1:-1] begins two rows and a column after the part of each
// rank, so that ranks lack two rows of the next one, and a column.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/tensor/view_window.h"
#include "ops/halo/plan.h"

namespace dtensor::internal {

struct SliceWindow {
  SpecPtr root, view;
  DimMap map;
  std::vector<int64_t> cut;               // the sharded dims of the root, ascending
  std::vector<std::vector<Run>> reached;  // per such dim, by position: indices of the root
  std::vector<int64_t> cutting;           // mesh dims that cut the sliced dims
  std::shared_ptr<const HaloPlan> plan;   // from the root
  // Every rank already holds half of its part of the window, and the window covers more than half of the root along the
  // dims that are not sharded. Otherwise, as for one of many time steps, it may be better to fetch an intermediate
  // slice and slice that.
  bool is_near = true;
};
using SliceWindowPtr = std::shared_ptr<const SliceWindow>;

// The window of `root` that has the layout `view` and begins `offset` elements after it in its memory. Cached per
// world.
// Null: it is not a product of slices of the dims, has another layout, or some rank holds none of it, or several runs.
SliceWindowPtr slice_window(const SpecPtr& root, const SpecPtr& view, int64_t offset);

// Whether every rank's window is inside its box.
bool lies_in(const GhostRegion& around, const SliceWindow& window);

// Copies the window from the root's ghost regions to `parts`, without communication. False: it does not lie in
// them, or the boxes were dropped.
bool take_from(const GhostRegion& around, const SliceWindow& window, const RankTensors& parts);

}  // namespace dtensor::internal
