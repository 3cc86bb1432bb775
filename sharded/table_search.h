// Chooses how the parameters of a model are sharded so that every rank keeps a memory budget and a step communicates
// little. Pure: facts in, choices out, the same on every rank. step_estimate.h prices the choices;
// embedding_sharding_planner.h makes the facts of a module.
//
//   TableSearch search{.ranks = 4, .samples = 64, .budget = 1 << 20};
//   auto choices = search.best({{"user", {100000, 16}, 4, true, 1, 1}, {"country", {200, 16}, 4, true, 1, 1}});
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/cost_model.h"
#include "sharded/step_estimate.h"

namespace dtensor::sharded {

struct TableSearch {
  int64_t ranks = 1;
  double samples = 1;          // a rank and step
  int64_t budget = 0;          // bytes a rank
  double memory_factor = 1;    // bytes kept per byte of parameter: gradients, moments
  int64_t min_columns = 1;     // narrower column shards are not made
  bool shard_dense = false;    // dense parameters may be cut by rows or columns
  bool crosses_nodes = false;  // argument of the cost model
  CostModel cost;

  // The choices found, in the order of `parameters`; nullopt if none that was tried stays within the budget. A
  // parameter with other than 2 dims is split by rows, or not at all if it has none.
  std::optional<std::vector<ShardingChoice>> best(const std::vector<ParameterFacts>& parameters) const;
  // The choices that need the least memory on the rank that needs most.
  std::vector<ShardingChoice> smallest(const std::vector<ParameterFacts>& parameters) const;
  // All choices for a parameter, table-wise on every rank.
  std::vector<ShardingChoice> possible(const ParameterFacts& parameter) const;
  StepEstimate estimate(const std::vector<ParameterFacts>& parameters,
                        const std::vector<ShardingChoice>& choices) const;
  StepSetting setting() const;  // for those estimates
};

}  // namespace dtensor::sharded
