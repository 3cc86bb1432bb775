// Runs halo plans on the local tensors of the owned ranks: below autograd, on plain tensors. Internal to ops/.
//
// Either is one call of the world's communicator, none where no rank lacks anything, also where no rank is owned.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/comm_event.h"
#include "ops/halo/plan.h"

namespace dtensor {

// What every rank wants, fresh and contiguous. `fill` stands where nothing is shown.
RankTensors fetch_halos(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill,
                        const CommCause& cause);
// The same in two steps: what is written to, and the exchange.
RankTensors empty_halos(const HaloPlan& plan, const RankTensors& locals);
void fetch_halos(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill, const CommCause& cause,
                 const RankTensors& result);

// What came from other ranks of boxes that fetch_halos() gave, one list of numbers per owned rank, and the boxes made
// of that anew, without communication.
RankTensors received_halos(const HaloPlan& plan, const RankTensors& boxes);
RankTensors boxes_again(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill,
                        const RankTensors& received);

// The other way round: every element gets the sum of what ranks have at the places that show it, `pieces` being of the
// sizes that fetch_halos() gives. The backward of fetch_halos(). Fresh, contiguous, laid out as plan.source.
RankTensors add_back_halos(const HaloPlan& plan, const RankTensors& pieces, const CommCause& cause);

}  // namespace dtensor
