// What steps take that run one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "dtensor/apply_layouts.h"
#include "dtensor/step_prediction.h"
#include "dtensor/step_timeline.h"

namespace dtensor::internal {

// The row of the same collective, mesh dims and level; a new one, with counts of 0, if there is none.
PredictedCollectives& row_like(std::vector<PredictedCollectives>& rows, const PredictedCollectives& row);

// Adds all terms of `part`, `times` as large, to those of `sum`, with the bubble; not the memory.
void add_step(StepPrediction& sum, const StepPrediction& part, double times);

inline int64_t bytes_of_layers(int64_t two, int64_t three, int64_t layers) {
  return three + (layers - 3) * (three - two);
}

inline double seconds_of_layers(double two, double three, int64_t layers) {
  return three + static_cast<double>(layers - 3) * (three - two);
}

// A step in its phases: forward and backward of each micro-batch, and the optimizer.
struct PhasedStep {
  StepPrediction step;
  std::vector<std::vector<StepSpan>> phases;
  double forward_seconds = 0, backward_seconds = 0;  // of one micro-batch, of several the second
  LayoutMemory memory = {};                          // without activations
};

// The step of a model of `layers` repeated layers, of those of 2 and 3 layers: each further layer takes as much time
// and memory as the third. The peak may be elsewhere than in a model of few layers: as a layer that holds activations
// counts more, the more there are, every operator is compared with the one at the same place from the beginning or from
// the end of its phase. Without phases.
PhasedStep step_of_layers(const PhasedStep& two, const PhasedStep& three, int64_t layers);

}  // namespace dtensor::internal
