// Code that pads usually slices shifted windows of the original size next, as stencils and differences do. Reading the
// first window fetches the halo of all of them in one exchange; the others are taken from it. The rank's part of the
// padded tensor itself, which is cut elsewhere, is fetched only if it is read.
#pragma once

#include <ATen/core/Scalar.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/halo/decision.h"
#include "ops/halo/plan.h"

namespace dtensor::internal {

// The request for what a rank needs of the padded tensor to have its part of every window of it as large as `source`.
// nullopt: a rank has no part, one in pieces, or one smaller than the padding; or the padding is negative.
std::optional<HaloRequest> windows_request(const SpecPtr& source, const std::vector<HaloDim>& pads);

// The padded tensor, with its communication deferred. Reading it is a collective call, as reading a copied view is.
// REQUIRES: decision.later, made by windows_request().
at::Tensor pad_lazily(const HaloDecision& decision, const at::Tensor& self, const at::Scalar& fill,
                      const CommCause& cause);

}  // namespace dtensor::internal
