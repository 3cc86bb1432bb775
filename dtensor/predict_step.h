// Predicts the time and the memory of a step on one rank, from one run in any world, an abstract one included.
//
//   DeviceMesh mesh(World::abstract(1024), {128, 8}, {"dp", "tp"});
//   ...                                             // a model and its optimizer on `mesh`
//   step();                                         // the first step makes gradients and optimizer states
//   std::cout << predict_step(step, mesh.world()).to_string();
//
// Times are those of the world's cost model (plan/cost_model.h). An operator, or a view, with a row in its table of
// measured times takes that, a product at least its reads and writes. Without one a matrix product takes the longer of
// its arithmetic, at the speed of its dtype, and its reads and writes; another operator its reads and writes, each
// input once and each result once; both the time to start them besides, but views; a collective the time at the level
// of its group, within a node or between nodes. A collective whose results are not needed at once (async_op, prefetch,
// overlap, OverlapCommunication, ContextParallel) goes on beside operators until they are, in abstract worlds and where
// the world's backend works so; collectives at one level do not go on beside each other. Of convolutions over sharded
// dims and of attention around a ring only the arithmetic counts. The rank is the one with the largest parts. It is
// taken to run every operator, so that a step of a pipeline, whose stages run on different ranks, has the time and the
// memory of all stages one after the other: see PipelineSchedule::simulate().
#pragma once

#include <functional>

#include "dtensor/step_prediction.h"
#include "dtensor/step_timeline.h"
#include "mesh/world.h"

namespace dtensor {

// Runs `step` once. `world`: that of the mesh of its tensors; the peak of its memory() stays what it would be without
// the prediction. Errors: what `step` throws; an empty function, a step without distributed operators, or on another
// world (ValueError).
StepPrediction predict_step(const std::function<void()>& step, const World& world);

// Likewise, with all operators and collectives in their order, for a picture.
StepTimeline predict_timeline(const std::function<void()>& step, const World& world);

}  // namespace dtensor
