// A DLRM over several ranks: its tables by a plan, the rest data parallel.
#pragma once

#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "examples/recommender/clicks.h"
#include "examples/recommender/dlrm.h"
#include "sharded/embedding_sharding_planner.h"
#include "sharded/sharded_optimizer.h"

namespace examples {

// Tables that the plan shards or places on one rank are ShardedTensors, and looked up together by
// sharded::embedding_bags; all other parameters are DTensors, replicated. A step of every rank's own samples then
// communicates
//
//   forward    1 all_gather of ids, 1 all_to_all of pooled rows
//   backward   1 all_to_all of their gradients, 1 all_reduce of the replicated parameters' (reduce_gradients below)
//   loss       1 all_reduce of a number
class ShardedDlrm {
 public:
  ShardedDlrm(Dlrm model, const dtensor::World& world, const dtensor::sharded::ShardingPlan& plan);

  const dtensor::DeviceMesh& mesh() const { return mesh_; }
  // The mean loss of all ranks' samples, distributed. `clicks`: of all ranks, each of which uses its own part.
  // Gradients of the replicated parameters are left to reduce_gradients(). Runs backward().
  at::Tensor step(const Clicks& clicks);
  // In one bucket.
  void reduce_gradients();
  dtensor::sharded::NamedParams parameters() const;

 private:
  at::Tensor batch(const at::Tensor& whole) const;  // cut by samples
  std::vector<at::Tensor> lookup(const Clicks& clicks);

  Dlrm model_;
  dtensor::DeviceMesh mesh_;
};

}  // namespace examples
