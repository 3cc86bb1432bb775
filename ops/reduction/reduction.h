// Reductions and scans.
#pragma once

#include <vector>

#include "propagation/factor_rule.h"

namespace dtensor::internal {

// The dims that a call of a reduction reduces, normalised and ascending: its argument "dim", or all where there is
// none.
std::vector<int64_t> reduced_dims(const OpCall& call);

// Whether the call keeps reduced dims at size 1.
bool keeps_dims(const OpCall& call);

// Global metadata of a reduction's result, contiguous.
OutputMetas reduction_metas(const OpCall& call, const std::vector<c10::ScalarType>& dtypes);
// Metadata of a single result in the input's dtype.
OutputMetas as_input(const OpCall& call);

}  // namespace dtensor::internal
