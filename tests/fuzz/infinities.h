// Infinities in plain programs. Addends of both signs that are combined with one are NaN together, where their sum is
// infinite.
#pragma once

#include <ATen/core/Tensor.h>

#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

bool has_infinity(const at::Tensor& t);
bool has_nan(const at::Tensor& t);

// Whether plain LibTorch has an infinity, or makes one by a division by zero or a logarithm, anywhere on its way to the
// results of the first `steps` steps, or to the gradients of that order. Zeros without memory (the gradient of sgn())
// count: LibTorch does not multiply them by infinite numbers.
bool meets_infinities(const Program& program, size_t steps, int order);

}  // namespace dtensor::fuzz
