// What a step of a pipeline takes besides the work of its slowest rank.
#pragma once

#include <cstdint>

#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/step_sum.h"
#include "dtensor/analysis/trial_step.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/search_module_layouts_options.h"

namespace dtensor::internal {

// The activation of a micro-batch, or its gradient, on the way from one pipeline rank to the next.
struct StageTransfer {
  int64_t bytes = 0;  // of a rank's part
  double seconds = 0;
  bool between_nodes = false;  // some pipeline ranks that follow one another are on different nodes
};

// Whole on the tensor dim, or sharded by dim 1 where the output of some style is. REQUIRES: check_options().
StageTransfer stage_transfer(const SearchModuleLayoutsOptions& options, const ModelArrangement& arrangement,
                             const ModuleLayouts& layouts);

// Adds to the step of a pipeline rank what it waits for: the bubble, as PipelineSchedule::simulate() says it of ranks
// that all take as long and transfer at no cost, and what the transfers add to that, as "permute(pp)". The parts of a
// split backward are half of it each.
void add_waiting(PhasedStep& step, const PipelineSchedule& schedule, const StageTransfer& transfer);

// The schedule with the times of a micro-batch on a pipeline rank, and of a transfer.
PipelineTimeline simulate_stages(const PipelineSchedule& schedule, const StepTimeline& micro_batch,
                                 const StageTransfer& transfer);

// No layouts are predicted to be faster than this: the products of the layers that a pipeline rank has, divided evenly
// among its ranks, and the shortest bubble for them, however long forward and backward are. 0 if the cost model has
// measured operators, as times of small products that were measured may be any part of those of large ones. REQUIRES:
// run_on_one_rank(tried).
double least_seconds(const TriedModel& tried, const ModelArrangement& arrangement);

}  // namespace dtensor::internal
