// Plans for models with embedding tables: every table replicated, on one rank, or cut by rows or columns, so that each
// rank stays within a memory budget and a step communicates little. The report gives the reasons.
//
//   EmbeddingShardingPlanner planner(world, {.bytes_per_rank = 64 << 20, .batch_per_rank = 512, .ids = {{"history",
//   50}}});
//   shard_module(*model, planner.build_plan(*model), world);
//   std::cout << planner.report().to_string();     // a line per parameter: choice, bytes, communication, reason
//
// Tables are the weights of torch::nn::Embedding and EmbeddingBag; all other parameters are dense, and replicated. What
// a step costs is estimated with the formulas of step_estimate.h and the cost model of the world. The search is a
// heuristic: it does not promise the best of all plans.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/cost_model.h"
#include "sharded/process_group.h"
#include "sharded/sharding_plan.h"
#include "sharded/table_search.h"

namespace dtensor::sharded {

struct PlannerOptions {
  int64_t bytes_per_rank = 0;  // limit per rank for parameters with their gradients and states
  double memory_factor = 1;    // bytes kept per byte of parameter: 2 with gradients, 4 with those and Adam's moments
  int64_t batch_per_rank = 1;  // samples a rank and step
  double ids_per_sample = 1;   // in each table
  std::map<std::string, double> ids = {};           // overrides ids_per_sample, by the table's module path
  int64_t min_columns = 1;                          // columns that a column-wise shard has at least
  bool shard_dense = false;                         // dense parameters may be cut, too: for modules that gather them
  std::shared_ptr<const CostModel> cost = nullptr;  // by default cost_model(world)
};

// The choice for one parameter.
struct PlannedParameter {
  ParameterFacts facts;
  ShardingChoice choice;
  int64_t bytes = 0;    // on the rank that holds most of it, with gradients and states
  double received = 0;  // bytes a step, by its own formula
  double seconds = 0;   // the same
  std::string why;
};

struct PlanReport {
  std::vector<PlannedParameter> parameters;
  StepEstimate step;
  int64_t budget = 0;
  // A table for people: the parameters, and below what each rank holds.
  std::string to_string() const;
};

class EmbeddingShardingPlanner : public ShardingPlanner {
 public:
  // Errors (ValueError): a budget, batch or number of ids below 1; a factor below 1.
  EmbeddingShardingPlanner(const ProcessGroup& group, PlannerOptions options);

  // Specs for parameters that are sharded or on one rank; replicated parameters are not in the plan. A row- or
  // column-wise table is a ChunkShardingSpec over all ranks of the group, one on a rank a spec with this placement
  // alone. Errors: ValueError if no plan stays within the budget: the text has the smallest budget found, and a
  // sufficient number of ranks; `ids` of a module that has no table.
  ShardingPlan build_plan(const torch::nn::Module& module) override;

  // The report on the last plan.
  const PlanReport& report() const { return report_; }

 private:
  ProcessGroup group_;
  PlannerOptions options_;
  PlanReport report_;
};

}  // namespace dtensor::sharded
