// Chooses the layouts of a step's operators together, instead of one after the other.
//
//   auto step = [&] { optimizer.zero_grad(); loss(model, batch).backward(); };  // the same at every call
//   LayoutPlan plan = optimize_layouts(step);   // runs it many times: do so in an abstract world
//   std::cout << plan.explain();                // the changes, with their expected gain
//   plan.save("layouts.json");
//   ...
//   PinnedLayouts pinned(plan);                 // until the end of the block
//   step();
//
// The engine decides every operator by the cost of moving its inputs; it does not regard the cost for later operators.
// optimize_layouts() runs the step with other decisions, while all other calls are decided as usual, and keeps those
// that reduce the total time: first, within half of the trials, the one change that reduces it most, and then any. It
// changes all calls that are alike (a model's layers), one call, or one call together
// with another that gets more expensive by it or moves its result. It does not find three changes that gain only
// together.
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
  // Called after every trial with the number of trials, and the least seconds so far.
  std::function<void(int64_t trials, double seconds)> progress = nullptr;
};

// Errors: what `step` throws in its first run; a step without distributed tensors (ValueError). In later runs, whose
// layouts the step may not support, an error makes the trial fail. Runs on the calling thread.
LayoutPlan optimize_layouts(const std::function<void()>& step, const OptimizeLayoutsOptions& options = {});

// The `most` costliest decisions of a step, each with its communication and the reason, the cost of the next best
// choice, and the step's total; then the change of one decision, and of those that are alike, with which the whole step
// is fastest: text for people. Runs `step` once, a second time if it communicates before the first operator that a rule
// decides, and once for each change that is tried, of which there are at most 200. Errors: as above.
std::string advise(const std::function<void()>& step, int64_t most = 3);

// A scope in which the next run of the step that `plan` was made for follows the plan. Make one per run. Must be the
// same on every rank.
class PinnedLayouts {
 public:
  explicit PinnedLayouts(const LayoutPlan& plan);
  ~PinnedLayouts();
  PinnedLayouts(const PinnedLayouts&) = delete;
  PinnedLayouts& operator=(const PinnedLayouts&) = delete;

  // Pins not used so far, since the call differed.
  int64_t missed() const;

 private:
  class Sites;
  std::unique_ptr<Sites> sites_;
  internal::DispatchScopeGuard guard_;
};

}  // namespace dtensor
