// Runs a RedistributePlan on the local tensors of the owned ranks.
#pragma once

#include "mesh/communicator.h"
#include "propagation/redistribute_plan.h"

namespace dtensor {

// `locals`, one per mesh.local_ranks(), are laid out as plan.from says for a tensor of global `spec`, of which mesh, sizes and
// dtype are read; the result is laid out as plan.to says. It aliases `locals` where the plan has no step, else it is fresh and
// contiguous. Below autograd; `locals` are plain tensors, and DTensor's dispatch key must not be included in thread-local
// state. Every collective step is one call of the world's communicator, reported with the step's bytes and `cause`, also
// where no rank is owned. Errors are the communicator's; then results so far are dropped. `locals` are never changed.
RankTensors run_plan(const RedistributePlan& plan, const Spec& spec, RankTensors locals, const CommCause& cause);

}  // namespace dtensor
