// Plans the redistribution of many tensors at once, with collectives combined where possible.
//
//   BatchPlan batch = plan_many({{a, {Replicate()}}, {b, {Replicate()}}});  // both sharded over tp
//   batch.num_collectives();  // 1, an all_gather of both
//
// Steps share a round if they communicate along the same mesh dims of one mesh: all-gathers, all-to-alls and permutes
// are one exchange, and all-reduces, or reduce-scatters, of one ReduceOp are one. Pure, like the planner: the same on
// every rank.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/redistribute_planner.h"
#include "plan/redistribution_cost.h"

namespace dtensor {

struct BatchPlan {
  std::vector<std::shared_ptr<const RedistributePlan>> plans;  // one per tensor

  // One collective. Local steps belong to no round: they run as soon as those before them are done.
  struct Round {
    std::vector<std::pair<int, int>> steps;         // plan, step of it; ascending
    Collective collective = Collective::kAllToAll;  // kind of the steps, kAllToAll if they differ
    int64_t bytes = 0;                              // of all steps
    double seconds = 0;                             // estimate; the latency is paid once
  };
  std::vector<Round> rounds;
  int64_t bytes = 0;
  // Alive at once on a rank: the steps of a round as RedistributeStep::peak_bytes, and the parts of tensors that wait
  // or are done.
  int64_t peak_bytes = 0;
  double seconds = 0;  // estimate, local steps included

  int64_t num_collectives() const { return static_cast<int64_t>(rounds.size()); }
  // One line for all, and one per round: "  1. all_gather(tp) of 2 tensors, 2048 B, 7.2 us".
  std::string explain() const;
};

// Plans from cached_plan(), in as few rounds as their order and `limits` allow: the limits bound each plan, and the
// total of the steps in a round. Error (c10::Error): tensors of several worlds, and those of cached_plan().
BatchPlan plan_many(c10::ArrayRef<Redistribution> tensors, const Limits& limits = {});
// The same for given plans, all of one world; between meshes, too. `limits`: for the total of the steps in a round;
// steps that exceed it go to another round.
BatchPlan batch_plans(std::vector<std::shared_ptr<const RedistributePlan>> plans, const Limits& limits = {});

// The part of the plan's time that does not depend on bytes: equal plans that are combined pay it once.
double latency_of(const RedistributePlan& plan);

}  // namespace dtensor
