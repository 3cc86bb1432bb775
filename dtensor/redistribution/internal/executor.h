// Runs plans on the local tensors of the owned ranks.
//
// Tensors go in with the layout plan.from and come out with plan.to: the same tensors if the plan has no step, else
// fresh (run_plan_to_read() excepted) and dense, their dims in the order in memory that the tensor's strides have.
// Inputs are never changed. A step's inputs are released as soon as the step is done, so that at most one step's inputs
// and outputs are alive, besides the caller's tensors. What ranks send one another is row-major, whatever the strides.
//
// All this is below autograd, on plain tensors; DTensor's dispatch key must not be included in thread-local state.
// Every collective is one call of the world's communicator, reported with the planned bytes and `cause`, also where no
// rank is owned; a step in several rounds is one per round.
// Errors (c10::Error), before anything is sent: tensors of another number, shape or dtype than the layout says; then
// those of the communicator. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "plan/plan_many.h"
#include "plan/redistribute_plan.h"

namespace dtensor::internal {

// Between meshes: one tensor per from.mesh().local_ranks() in, one per to.mesh().local_ranks() out.
RankTensors run_plan(const RedistributePlan& plan, RankTensors locals, const CommCause& cause);
// The same for an operator that only reads the results: a rank whose part a local step leaves as it is, as the first
// one of a Partial made of a replicated tensor, may get the given tensor.
RankTensors run_plan_to_read(const RedistributePlan& plan, RankTensors locals, const CommCause& cause);
// The same as run_plan(), but returns when the last communicating step has begun, if the backend can run
// asynchronously. Then it leaves in `work` what to wait for before the result is used, including the local steps after
// it; the last local step's outputs are allocated at once. What such a step reduces last stays row-major.
RankTensors begin_plan(std::shared_ptr<const RedistributePlan> plan, RankTensors locals, const CommCause& cause,
                       std::shared_ptr<CommWork>& work);

// Between any two layouts. In and out, for each of world.owned_ranks(), its tensors: one or none of a mesh, those of
// its boxes in their order.
RankPieces run_transfer(const RedistributePlan& plan, RankPieces locals, const CommCause& cause);

// Many tensors; locals[i] are those of batch.plans[i]. One collective per round. `work`: as of begin_plan(), for all
// rounds at once, but stays empty where some plan that communicates is more than one step.
std::vector<RankTensors> run_plans(const BatchPlan& batch, std::vector<RankTensors> locals, const CommCause& cause,
                                   std::shared_ptr<CommWork>* work = nullptr);

}  // namespace dtensor::internal
