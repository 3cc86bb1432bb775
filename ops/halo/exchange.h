// Runs halo plans on the local tensors of the owned ranks: below autograd, on plain tensors.
//
// Each exchange is one call of the world's communicator, also where no rank is owned; no call if no rank lacks
// anything.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/comm_event.h"
#include "ops/halo/plan.h"

namespace dtensor::internal {

// The tensor that every rank needs, fresh, its dims in the order in memory that the source's strides have. `fill` is
// used where nothing is shown.
RankTensors fetch_halos(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill,
                        const CommCause& cause);
// The same in two steps: the tensors to fill, and the exchange.
RankTensors empty_halos(const HaloPlan& plan, const RankTensors& locals);
// The same for a result whose dims have the order in memory of other strides than the source's.
RankTensors empty_halos(const HaloPlan& plan, const RankTensors& locals, at::IntArrayRef strides);
void fetch_halos(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill, const CommCause& cause,
                 const RankTensors& result);

// The elements in the boxes of fetch_halos() that came from other ranks, one 1-d tensor per owned rank; and boxes
// rebuilt from them without communication.
RankTensors received_halos(const HaloPlan& plan, const RankTensors& boxes);
RankTensors boxes_again(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill,
                        const RankTensors& received);

// The transpose of fetch_halos(), for backward: every element becomes the sum over all places that show it. `pieces`
// have the sizes that fetch_halos() returns. Fresh, laid out as plan.source, its dims in the order in memory that the
// strides of plan.source have.
RankTensors add_back_halos(const HaloPlan& plan, const RankTensors& pieces, const CommCause& cause);

}  // namespace dtensor::internal
