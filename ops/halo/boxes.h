// The box of a tensor that each rank computes with: its part and the elements around it. Below autograd.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/comm_event.h"
#include "ops/halo/decision.h"

namespace dtensor::internal {

// The box of `t` that each rank needs, fresh, with `fill` where decision.plan shows no element: from the declared ghost
// region of `t`, if that has it, which is fetched if it is not cached; else by an exchange.
RankTensors fetch_boxes(const HaloDecision& decision, const at::Tensor& t, const at::Scalar& fill,
                        const CommCause& cause);
// The same, read-only: a rank that needs only what it holds gets its local tensor itself.
RankTensors boxes_of(const HaloDecision& decision, const at::Tensor& t, const at::Scalar& fill, const CommCause& cause);

// Numbers that identify, together with the layout of a tensor, which boxes a set of sliding windows needs.
using BoxKey = std::vector<int64_t>;
// Like boxes_of(), with zeros where the plan shows no element. Elements from other ranks are cached with `t`
// (remembered_layouts.h): a call with the same key and an equal plan for boxes of the same layout gets them without
// communication, for example in backward after forward.
RankTensors boxes_of(const HaloDecision& decision, const at::Tensor& t, const BoxKey& key, const CommCause& cause);

// The result of add_back_halos(); pieces that already equal the parts are returned as they are.
RankTensors back_from_boxes(const HaloPlan& plan, RankTensors pieces, const CommCause& cause);

}  // namespace dtensor::internal
