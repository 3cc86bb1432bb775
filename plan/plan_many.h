// Many tensors from one layout to another at once: what can be one collective is one.
//
//   BatchPlan batch = plan_many({{a, {Replicate()}}, {b, {Replicate()}}});  // both sharded over tp
//   batch.num_collectives();  // 1, an all_gather of both
//
// Steps meet in a round if they talk along the same mesh dims of one mesh: all-gathers, all-to-alls and permutes are
// one exchange, and all-reduces, or reduce-scatters, of one ReduceOp are one. Pure, like the planner: the same on every
// rank.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/redistribute_planner.h"

namespace dtensor {

struct Redistribution {
  SpecPtr from;
  Placements to;
};

struct BatchPlan {
  std::vector<std::shared_ptr<const RedistributePlan>> plans;  // one per tensor

  // One collective. Local steps are in no round: they run as soon as those before them are done.
  struct Round {
    std::vector<std::pair<int, int>> steps;         // plan, step of it; ascending
    Collective collective = Collective::kAllToAll;  // what the steps are, kAllToAll if they differ
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
  // A line for all, and one per round: "  1. all_gather(tp) of 2 tensors, 2048 B, 7.2 us".
  std::string explain() const;
};

// Plans from cached_plan(), in as few rounds as waiting for each other and `limits` give: these bound each plan, and
// what the steps of a round need together. Error (c10::Error): tensors of several worlds, and those of cached_plan().
BatchPlan plan_many(c10::ArrayRef<Redistribution> tensors, const Limits& limits = {});
// What they take, an estimate; infinity where no route keeps the limits.
double seconds_to_move(c10::ArrayRef<Redistribution> tensors, const Limits& limits);
// The same for plans made otherwise, all of one world; between meshes, too. `limits`: of what the steps of a round need
// together; those that exceed it wait for another round.
BatchPlan batch_plans(std::vector<std::shared_ptr<const RedistributePlan>> plans, const Limits& limits = {});

// Seconds that the plan's collectives take however few bytes they move: plans that are alike pay them once together.
double latency_of(const RedistributePlan& plan);

}  // namespace dtensor
