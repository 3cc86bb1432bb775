// What the public functions of redistribution share. Internal.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/comm_event.h"
#include "dtensor/extend/representation.h"

namespace dtensor {

// The user asked for it by calling `function`.
CommCause explicit_cause(std::string function);
// Error: `t` is plain.
const DTensorMeta& checked_layout(const at::Tensor& t, const char* function);
// Normalised. Errors: one per mesh dim is missing; a dim that the tensor lacks.
absl::StatusOr<Placements> fitting_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim);
// The same; throws errors in the name of `function`.
Placements checked_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim, const char* function);

// A gradient of a distributed tensor. One that is plain, since the user gave it, counts as replicated; differentiable.
at::Tensor distributed_gradient(const at::Tensor& gradient, const DeviceMesh& mesh);

// On any mesh of the same world; differentiable. `placements` as checked_placements() gives them.
at::Tensor redistribute_to(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                           const CommCause& cause);
std::vector<at::Tensor> redistribute_many_as(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Placements>& placements, const CommCause& cause);

}  // namespace dtensor
