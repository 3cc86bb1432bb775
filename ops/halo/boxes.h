// The box of a tensor that each rank computes with: its part of it and what lies around that. Below autograd. Internal
// to ops/.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/comm_event.h"
#include "ops/halo/plan.h"

namespace dtensor {

// What fetch_halos() gives of `t`, to be read only: a rank that wants just what it holds gets that itself.
RankTensors boxes_of(const HaloPlan& plan, const at::Tensor& t, const at::Scalar& fill, const CommCause& cause);

// Numbers that say, beside the layout of a tensor, what boxes of it are: of the windows that slide over it.
using BoxKey = std::vector<int64_t>;
// What boxes_of() gives, with zeros where nothing is shown. What came from other ranks is remembered with `t`
// (remembered_layouts.h): a call with the same key and an equal plan for boxes of the same layout gets them without
// communication, as backward does that wants what forward had.
RankTensors boxes_of(const HaloPlan& plan, const at::Tensor& t, const BoxKey& key, const CommCause& cause);

// What add_back_halos() gives; pieces that are the parts already come back as they are.
RankTensors back_from_boxes(const HaloPlan& plan, RankTensors pieces, const CommCause& cause);

}  // namespace dtensor
