// Of a padded tensor the windows are read next that are as large as it was before: a stencil's neighbours, the elements
// that a difference is of. So whoever pads gets all that those reach, once, and slices are taken of what is known.
// Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "dtensor/extend/reduced_forms.h"
#include "ops/halo_plan.h"

namespace dtensor {

// What a rank wants of the padded tensor so that it has its part of every window of it that is as large as `source`.
// nullopt: some rank has no part, or one in pieces, or something is cut off rather than padded.
std::optional<HaloRequest> surroundings_request(const SpecPtr& source, const SpecPtr& padded,
                                                const std::vector<HaloDim>& pads);

// `boxes`: what was fetched by such a request.
Surroundings surroundings_of(const HaloRequest& request, RankTensors boxes);
// The parts of `spec`, of which `known` are the surroundings; fresh.
RankTensors own_parts(const Surroundings& known, const Spec& spec);

// The surroundings of indices begin, begin + 1, ... of dim `dim`, of which `view` says whose they are; nullopt where
// they do not hold every rank's part.
std::optional<Surroundings> sliced_surroundings(const Surroundings& known, const Spec& view, int64_t dim,
                                                int64_t begin);

}  // namespace dtensor
