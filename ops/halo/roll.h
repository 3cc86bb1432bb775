// roll() of a cut dim: which elements of other ranks it fetches, and where it has them already.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "comm/comm_event.h"
#include "comm/rank_tensors.h"
#include "ops/halo/decision.h"
#include "ops/halo/index_map.h"

namespace dtensor::internal {

// By how many elements a roll shifts along a dim: at most half of it, in either direction.
int64_t shift_of(const IndexMap& rolled);

// The request for the elements that a shift along one dim needs, and the same shift the other way, which programs
// usually call next. `dims`: of the roll. nullopt: it shifts along several dims, or parts are shorter than the shift,
// or in pieces.
std::optional<HaloRequest> both_ways(const SpecPtr& source, const std::vector<HaloDim>& dims);

// The parts of `self`, rolled along `dims`: from cached margins of both borders, which are fetched if they are not
// cached, if the decision says so; else from the declared ghost region or by an exchange of its own. REQUIRES:
// decision.plan.
RankTensors rolled_parts(const HaloDecision& decision, const at::Tensor& self, const std::vector<HaloDim>& dims,
                         const CommCause& cause);

}  // namespace dtensor::internal
