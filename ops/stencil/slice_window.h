// A slice, or a slice of slices, as a window of the tensor that it is of in the end: what of that every rank has in the
// window, and how it gets there. Pure, the same on every rank. Internal to ops/.
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

namespace dtensor {

struct SliceWindow {
  SpecPtr root, view;
  DimMap map;
  std::vector<int64_t> cut;               // the dims of the root that ranks share, ascending
  std::vector<std::vector<Run>> reached;  // per such dim, by place: indices of the root
  std::vector<int64_t> cutting;           // mesh dims that cut what is sliced
  std::shared_ptr<const HaloPlan> plan;   // from the root
  // Every rank has half of its part of the window already, and the window more than half of the root along the dims
  // that nobody shares. Else it may be better to bring what it is a slice of, and to slice that: one of many time
  // steps.
  bool is_near = true;
};
using SliceWindowPtr = std::shared_ptr<const SliceWindow>;

// The window of `root` that has the layout `view` and begins `offset` elements after it in its memory. Remembered per
// world.
// Null: it is none dim by dim, is laid out otherwise, or some rank has none of it, or several runs.
SliceWindowPtr slice_window(const SpecPtr& root, const SpecPtr& view, int64_t offset);

// Takes the window of the root's surroundings to `parts`, without communication. False: some rank's is not in its box,
// or the boxes were forgotten.
bool take_from(const GhostRegion& around, const SliceWindow& window, const RankTensors& parts);

}  // namespace dtensor
