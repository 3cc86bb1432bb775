// Layouts of a step's operators chosen together, instead of one after the other.
//
//   auto step = [&] { optimizer.zero_grad(); loss(model, batch).backward(); };  // as often as it is called, the same
//   LayoutPlan plan = optimize_layouts(step);   // runs it many times: do so in an abstract world
//   std::cout << plan.explain();                // what it changed, and what that should gain
//   plan.save("layouts.json");
//   ...
//   PinnedLayouts pinned(plan);                 // until the end of the block
//   step();
//
// The engine decides every operator by what its inputs cost to bring there. What an operator leaves to those after it,
// it cannot know. Here the step is run with other decisions, all that are not changed deciding as they would then, and
// what takes less time in all is kept: those of all calls that are alike (a model's layers), of one call, or of one and
// of another that it makes dearer or moves the result of. Three changes that gain only together are not found.
//
// Estimated, not measured: time is that of the cost model for all collectives, and of the matrix products of one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "dtensor/layout_plan.h"
#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor {

struct OptimizeLayoutsOptions {
  int64_t max_trials = 1000;
  int64_t max_bytes = std::numeric_limits<int64_t>::max();  // alive at once on a rank, as World::memory() counts
  // Told after every trial: how many there were, and the least seconds so far.
  std::function<void(int64_t trials, double seconds)> progress;
};

// Errors: what `step` throws in its first run; a step without distributed tensors (ValueError). In later runs, whose
// layouts it may not be made for, an error is a trial that failed. Runs on the calling thread.
LayoutPlan optimize_layouts(const std::function<void()>& step, const OptimizeLayoutsOptions& options = {});

// The `most` dearest decisions of a step, each with what it moved and why, what the next best would have taken, and the
// step's total: text for people. Runs `step` once. Errors: as above.
std::string advise(const std::function<void()>& step, int64_t most = 3);

// A scope in which the next call of the step that `plan` was made for is computed as it says. Make one per step. Must
// be the same on every rank.
class PinnedLayouts {
 public:
  explicit PinnedLayouts(const LayoutPlan& plan);
  ~PinnedLayouts();
  PinnedLayouts(const PinnedLayouts&) = delete;
  PinnedLayouts& operator=(const PinnedLayouts&) = delete;

  // Pins that were not taken so far, since the call was another.
  int64_t missed() const;

 private:
  class Sites;
  std::unique_ptr<Sites> sites_;
  DispatchScopeGuard guard_;
};

}  // namespace dtensor
