// The state of one tensor between the steps of a plan.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "plan/transfer/schedule.h"

namespace dtensor::internal {

class PlanRun {
 public:
  // `pieces` are in the order of schedule_of(plan)->ranks. Error: they do not have the layout plan.from. `plan` must
  // outlive this.
  PlanRun(const RedistributePlan& plan, RankPieces pieces);

  const RedistributePlan& plan() const { return *plan_; }
  size_t next() const { return next_; }
  bool done() const { return next_ == plan_->steps.size(); }
  // The next one. REQUIRES: !done().
  const RedistributeStep& step() const { return plan_->steps[next_]; }
  const StepSchedule& scheduled() const { return schedule_->steps[next_]; }

  // Runs the next step, which is local.
  void run_local();
  // Allocates the tensors of take_result() before the last step has run, which must be local and will write to them.
  // Call once.
  RankPieces reserve_result();
  // The results, in the order of schedule_of(plan)->result_ranks. REQUIRES: done(); then nothing else.
  RankPieces take_result();

  // Bytes alive on a rank while the next step runs; call before it. Those of the caller's tensors are counted
  // elsewhere.
  int64_t step_bytes() const {
    const bool is_handed_out = !reserved_.empty() && next_ + 1 == plan_->steps.size();
    return step().peak_bytes - (next_ == 0 ? schedule_->input_bytes : 0) -
           (is_handed_out ? schedule_->steps[next_].output_bytes : 0);
  }
  int64_t held_bytes() const { return next_ == 0 ? 0 : schedule_->steps[next_ - 1].output_bytes; }

 private:
  friend void run_collective(absl::Span<PlanRun* const> runs, const CommCause& cause, std::shared_ptr<CommWork>* work);
  // Sorts the tensors into the order of the next step's ranks. Once per step.
  void prepare();
  RankPieces new_outputs(size_t step) const;
  void finish(RankPieces outputs) {
    pieces_ = std::move(outputs);
    ++next_;
  }

  const RedistributePlan* plan_;
  std::shared_ptr<const PlanSchedule> schedule_;
  RankPieces pieces_;
  RankPieces reserved_;  // the last step's outputs, or empty
  size_t next_ = 0;
};

// Runs the next steps of all runs as one collective (of all their rounds).
// REQUIRES: they can be combined (plan_many.h). `work`: as CommCall::work, and stays empty where the results are
// available.
void run_collective(absl::Span<PlanRun* const> runs, const CommCause& cause, std::shared_ptr<CommWork>* work);

}  // namespace dtensor::internal
