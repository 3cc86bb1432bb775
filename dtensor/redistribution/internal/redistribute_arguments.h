// Checks the arguments of the public functions of redistribution.
#pragma once

#include "absl/status/statusor.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

// Error (TypeError): `t` is plain.
const DTensorMeta& checked_layout(const at::Tensor& t, const char* function);
// Normalised placements. Errors: not one per mesh dim; a dim that the tensor lacks.
absl::StatusOr<Placements> fitting_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim);
// The same; throws errors in the name of `function`.
Placements checked_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim, const char* function);

}  // namespace dtensor::internal
