// The result of optimize_layouts(): decisions of a step that differ from the engine's own, and the time they save. A
// value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/placement.h"

namespace dtensor {

// One decision that differs from the engine's own.
struct LayoutPin {
  int64_t call = 0;       // which of the step's calls of operators, from 0
  std::string as_called;  // "aten::mm(f32[4, 6](S(0)), f32[6, 2](R))"; a call that differs is decided by the engine
  std::vector<Placements> inputs;  // layouts to compute in; empty for an absent input
  double seconds = 0;              // time that the pin saves
};

// The estimated cost of a step on the rank that has most to do.
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
  std::vector<LayoutPin> pins;  // empty: no tried change improves on the engine's choices
  StepCost before, after;
  int64_t trials = 0;  // steps that were run

  // One line for the whole plan, one per pin.
  std::string explain() const;

  // As JSON. Errors (c10::Error): the file cannot be written or read, or is not such a plan; the text names it.
  void save(const std::string& path) const;
  static LayoutPlan load(const std::string& path);
};

}  // namespace dtensor
