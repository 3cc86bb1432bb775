// Reductions by the backend itself, where the table of comm/backend_capabilities.h allows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "comm/backend_capabilities.h"
#include "comm/rank_tensors.h"
#include "processes/c10d/link_call.h"

namespace dtensor::internal {

// Writes results[k] for every inputs[k] that `backend` reduces, in one call for all that it gets as one dtype. Returns
// the indices of the others. REQUIRES: as many results as inputs.
std::vector<size_t> all_reduce_by_backend(const LinkCall& call, CommBackend backend, const Pieces& inputs, ReduceOp op,
                                          Pieces& results);

}  // namespace dtensor::internal
