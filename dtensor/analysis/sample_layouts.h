// Layouts for the tensors of a sample, and which of them need no communication. Internal to verify_rule().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/analysis/sample_call.h"

namespace dtensor {

using Layouts = std::vector<Placements>;  // one per tensor

// What a tensor may be along one mesh dim: Partials as sums, or of all kinds that its dtype allows.
std::vector<Placement> placements_of(const at::Tensor& t, bool all_partials);

// All layouts of some tensors on a mesh of `ndim` dims, or, of more than `most`, so many drawn at random.
std::vector<Layouts> layouts_of(const std::vector<at::Tensor>& tensors, int64_t ndim, int64_t most, uint64_t seed,
                                bool all_partials);

// "S(0), R"
std::string text_of(const Layouts& layouts);

// The tensors of a call with other values, several times: scaled, in another order of their elements, with those of
// other tensors of the dtype, all alike, and of two kinds, so that masks, indices and flags say something else. None
// that the operator does not take.
std::vector<std::vector<at::Tensor>> other_values(const SampleCall& call);

// The layout of the results if every rank runs the operator on its own parts of `values`, tensors like the call's;
// nullopt: these do not make up the results. `mesh` has one dim.
std::optional<Placements> free_layout(const SampleCall& call, const DeviceMesh& mesh, const Layouts& layouts,
                                      const std::vector<at::Tensor>& values, double tolerance);

}  // namespace dtensor
