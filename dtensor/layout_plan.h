// Decisions of a step that differ from the engine's own, and what that spares: what optimize_layouts() finds. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/placement.h"

namespace dtensor {

// One decision that differs from the engine's own.
struct LayoutPin {
  int64_t call = 0;                // which of the step's calls of operators, from 0
  std::string as_called;           // "aten::mm(f32[4, 6](S(0)), f32[6, 2](R))"; called otherwise, the engine decides
  std::vector<Placements> inputs;  // what it is computed in; empty: an absent one
  double seconds = 0;              // that the step takes less with it
};

// What a step is estimated to take on the rank that has most to do.
struct StepCost {
  double seconds = 0;
  int64_t collectives = 0;
  int64_t bytes = 0;  // received
  double flops = 0;   // of matrix products
  int64_t peak_bytes = 0;

  // "812.4 us, 31 collectives, 1048576 bytes, 2.1e+09 FLOP, peak 4194304 bytes"
  std::string to_string() const;
};

struct LayoutPlan {
  std::vector<LayoutPin> pins;  // none: the engine's own choices are as good as anything that was tried
  StepCost before, after;
  int64_t trials = 0;  // steps that were run

  // A line on the whole, one per pin.
  std::string explain() const;

  // As JSON. Errors (c10::Error): the file cannot be written or read, or is no such plan; the text names it.
  void save(const std::string& path) const;
  static LayoutPlan load(const std::string& path);
};

}  // namespace dtensor
