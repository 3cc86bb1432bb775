// Of a padded tensor windows are read next that are as large as it was before: a stencil's neighbours, the elements
// that a difference is of. When the first one is, every rank gets all that those reach, and the others are taken of it.
// Its part of the padded tensor itself, which is cut elsewhere, comes if somebody asks for that. Internal to ops/.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/halo/decision.h"
#include "ops/halo/plan.h"

namespace dtensor {

// What a rank wants of the padded tensor so that it has its part of every window of it that is as large as `source`.
// nullopt: some rank has no part, or one in pieces, or one that is smaller than what is added; or something is cut off.
std::optional<HaloRequest> windows_request(const SpecPtr& source, const std::vector<HaloDim>& pads);

// The padded tensor, of which nothing has moved yet. Reading it is a collective call, as reading a copied view is.
// REQUIRES: decision.later, of windows_request().
at::Tensor pad_late(const HaloDecision& decision, const at::Tensor& self, const at::Scalar& fill,
                    const CommCause& cause);

}  // namespace dtensor
