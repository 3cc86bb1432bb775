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

// `self`, rolled along `dims`, from its periodic ghost region (declared_region.h), which is fetched if it is not
// cached. Decides by the declaration alone, so that it needs no entry of the strategy cache. nullopt: there is no such
// region, as declared_region() says, `self` is not row-major, or a shift along a cut dim goes beyond the declared
// width.
std::optional<at::Tensor> rolled_within_width(const at::Tensor& self, const std::vector<HaloDim>& dims,
                                              const CommCause& cause);

// The parts of `self`, rolled along `dims`: from cached margins of both borders, which are fetched if they are not
// cached, if the decision says so; else by an exchange of its own. REQUIRES: decision.plan.
RankTensors rolled_parts(const HaloDecision& decision, const at::Tensor& self, const std::vector<HaloDim>& dims,
                         const CommCause& cause);

}  // namespace dtensor::internal
