// The steps of a plan on one mesh, for planners that add others before or after them.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/placement.h"
#include "plan/cost_model.h"
#include "plan/limits.h"
#include "plan/tensor_meta.h"

namespace dtensor {
struct RedistributeStep;  // plan/redistribute_plan.h
}

namespace dtensor::internal {

// `from` after the changes that are free.
Placements relabelled(const DeviceMesh& mesh, Placements from, const Placements& to);

// As plan_redistribution(), with fewer results. No steps if nothing changes. False if the limits leave no route.
bool find_mesh_steps(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost, const Limits& limits, std::vector<RedistributeStep>& steps,
                     bool complete = false);

// A lower bound for all routes. Quick: for choosing targets to plan.
double least_seconds(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost);

// The time of some route, seldom much more than the best. Quick: for comparing many targets.
double plain_seconds(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost);

// The smallest Limits::max_bytes that leaves a route. REQUIRES: there is none within `fails`.
int64_t least_mesh_peak(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                        const CostModel& cost, int64_t fails);

}  // namespace dtensor::internal
