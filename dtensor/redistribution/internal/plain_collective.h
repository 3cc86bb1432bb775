// Collectives on plain tensors, one per rank of this process, or in a world without data one stand-in (stand_in.h),
// that autograd records.
#pragma once

#include <functional>

#include "comm/rank_tensors.h"
#include "dtensor/redistribution/internal/plain_call.h"

namespace dtensor::internal {

using PlainCollective = std::function<RankTensors(const RankTensors&)>;

// forward(tensors), with the gradients backward(gradients of the results). Gradients of results that were not used are
// zeros, since other ranks may have used theirs. `reached_by`: plain tensors whose backward must run on every rank if
// that of the results does, although a rank may have computed nothing with them; they get no gradient.
RankTensors differentiable(const PlainCall& call, const RankTensors& tensors, const PlainCollective& forward,
                           const PlainCollective& backward, const RankTensors& reached_by = {});

}  // namespace dtensor::internal
