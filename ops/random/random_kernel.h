// The philox kernel for a rank's part, on the part's device. random_fill.cc makes the offsets: the global places of the
// part's elements.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/kernels/cpu/philox.h"

namespace dtensor::internal {

// Fills `part`, of any real dtype and any strides. `probabilities` (undefined: none): see cpu::philox_bernoulli; then
// `draw` is a kBernoulli. Below autograd.
void philox_fill_part(const at::Tensor& part, const cpu::GlobalOffsets& offsets, const RandomDraw& draw, uint64_t key,
                      uint64_t stream, const at::Tensor& probabilities = {});

}  // namespace dtensor::internal
