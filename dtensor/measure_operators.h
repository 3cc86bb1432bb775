// Times of the operators of steps, measured on few ranks, to predict other steps from.
//
//   CostModel model = *cost_model(world);
//   model.operators = measure_operators({step}, world);
//   set_cost_model(other_world, model);   // in which predict_step() takes operators of these names from the table
//
// The time from the end of one operator to the end of the next one is that of the second: its decision, its start, its
// computation and the allocation of its result on all ranks of this process. Operators for whose inputs or results the
// library communicates are left out. Of ranks on GPUs the times are those between events of their current streams: what
// takes longer, starting the work or doing it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "mesh/world.h"
#include "plan/operator_times.h"

namespace dtensor {

// Runs each step once, and then `repetitions` times with a clock, of which the faster half counts. Calls of an operator
// with amounts that differ by less than a fifth have one time, their mean; views, and for the row "other" all operators
// that are no products and have amounts within a factor of 4, have their median. The elements of a call with lists of
// tensors share its time by their amounts.
//
// With ranks in several processes all of these call it together, and get one table: that of the process whose operators
// took longest, with the rows and amounts of the others that it lacks. Errors (ValueError): no steps, or an empty
// function; repetitions < 1; a world without ranks in this process, in which nothing is computed. What a step throws.
OperatorTimes measure_operators(const std::vector<std::function<void()>>& steps, const World& world,
                                int64_t repetitions = 5);

}  // namespace dtensor
