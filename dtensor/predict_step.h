// Predicts the time and the memory of a step on one rank, from one run in any world, an abstract one included.
//
//   DeviceMesh mesh(World::abstract(1024), {128, 8}, {"dp", "tp"});
//   ...                                             // a model and its optimizer on `mesh`
//   step();                                         // the first step makes gradients and optimizer states
//   std::cout << predict_step(step, mesh.world()).to_string();
//
// Times are those of the world's cost model (plan/cost_model.h). A matrix product takes the longer of its arithmetic,
// at the speed of its dtype, and its reads and writes; another operator its reads and writes, each input once and each
// result once; both the time to start them besides, but views; a collective the time at the level of its group, within
// a node or between nodes. Nothing overlaps, and of convolutions over sharded dims and of attention around a ring only
// the arithmetic counts. The rank is the one with the largest parts. It is taken to run every operator, so that a
// step of a pipeline, whose stages run on different ranks, has the time and the memory of all stages one after the
// other: see PipelineSchedule::simulate().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "mesh/world.h"

namespace dtensor {

// All collectives of one kind over the same mesh dims, at one level.
struct PredictedCollectives {
  Collective collective = Collective::kBarrier;
  std::string mesh_dims;       // "tp", "dp,tp"
  bool between_nodes = false;  // some group has ranks on several nodes
  int64_t count = 0;
  int64_t bytes = 0;  // that a rank receives
  double seconds = 0;

  std::string name() const;  // "all_reduce(tp)"
};

struct StepPrediction {
  double product_seconds = 0;                       // matrix products, with the time to start them
  double operator_seconds = 0;                      // other operators, likewise
  std::vector<PredictedCollectives> communication;  // longest first
  double flops = 0;                                 // of matrix products
  int64_t memory_traffic = 0;                       // bytes that operators read and write
  int64_t live_bytes = 0;                           // before the step: parameters, states, gradients that are kept
  int64_t peak_bytes = 0;                           // at most at one time, as World::memory() counts
  int64_t operators = 0;                            // that a rank starts: those above, views are none
  double start_seconds = 0;                         // to start them, part of product_seconds and operator_seconds

  double communication_seconds() const;
  double seconds() const { return product_seconds + operator_seconds + communication_seconds(); }
  // A line for the whole and one for each term.
  std::string to_string() const;
};

// Runs `step` once. `world`: that of the mesh of its tensors; the peak of its memory() stays what it would be without
// the prediction. Errors: what `step` throws; an empty function, a step without distributed operators, or on another
// world (ValueError).
StepPrediction predict_step(const std::function<void()>& step, const World& world);

}  // namespace dtensor
