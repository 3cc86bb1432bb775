// Cross entropy over the classes that one rank holds, each way in one pass over the logits.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/kernels/cross_entropy.h"

namespace dtensor::cpu {

// What to compute on. `logits`: [rows, part.size], contiguous, float, double, half or bfloat16. `target`: [rows] of
// int64, or the probabilities of these classes, like the logits. `weight`: [part.size] of the type that is computed in
// (float or double), or undefined.
struct CrossEntropyPart {
  const at::Tensor &logits, &target, &weight;
  internal::ClassPart part;
};

// The numbers of ops/kernels/cross_entropy.h, in float for half types: [numbers, rows]. All are 0 in ignored rows, but
// for the sum, which is 1. Error (IndexError): a target outside [0, num_classes) that is not ignored.
at::Tensor cross_entropy_part(const CrossEntropyPart& in);

// Writes grad[0] * exp(logits - max) + grad[1] * q to `out`, which has the logits' sizes and dtype and may be
// the logits themselves. `grad`: [2, rows], `max`: [rows], both contiguous and of the type that is computed in.
// Zeros in ignored rows. A row whose grad[0] is 0 does not read its logits. Error: as above.
void cross_entropy_part_backward(const at::Tensor& grad, const at::Tensor& max, const CrossEntropyPart& in,
                                 const at::Tensor& out);

}  // namespace dtensor::cpu
