// Layouts for the tensors of a sample, and which of them need no communication.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/analysis/sample_call.h"

namespace dtensor::internal {

using Layouts = std::vector<Placements>;  // one per tensor

// The placements to try for a tensor along one mesh dim: Partials only as sums, or of all kinds that its dtype allows.
std::vector<Placement> placements_of(const at::Tensor& t, bool all_partials);

// All layouts of some tensors on a mesh of `ndim` dims; if more than `most`, that many drawn at random.
std::vector<Layouts> layouts_of(const std::vector<at::Tensor>& tensors, int64_t ndim, int64_t most, uint64_t seed,
                                bool all_partials);

// "S(0), R"
std::string text_of(const Layouts& layouts);

// The tensors of a call with other values, in several variants: scaled, with their elements in another order, with
// values of other tensors of the dtype, all equal, and of two values, so that masks, indices and flags vary. Excludes
// variants that the operator rejects.
std::vector<std::vector<at::Tensor>> other_values(const SampleCall& call);

// The layout of the results if every rank runs the operator on its own parts of `values`, tensors like the call's;
// nullopt: the local results do not make up the whole ones. `mesh` has one dim.
std::optional<Placements> free_layout(const SampleCall& call, const DeviceMesh& mesh, const Layouts& layouts,
                                      const std::vector<at::Tensor>& values, double tolerance);

}  // namespace dtensor::internal
