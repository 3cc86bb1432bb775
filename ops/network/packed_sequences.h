// Sequences of unequal length, packed: the first steps of all, then the second ones of those that have one, ... as rows
// of `data`; `batch_sizes`, a plain tensor on the CPU, holds the number of rows of each step.
//
// No layout of the rows gives every rank the steps of its own sequences, so packing a sharded batch gives a Partial:
// zeros for rows of other ranks. The padded tensor is kept with `batch_sizes`, which accompanies the packed sequences
// everywhere. So pack, a recurrent network and pad communicate nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtensor::internal {

// [steps, batch, ...], with `padding` behind the end of each sequence. Differentiable. REQUIRES: `data` is distributed,
// `steps` as large as batch_sizes or larger.
at::Tensor pad_packed(const at::Tensor& data, const at::Tensor& batch_sizes, int64_t steps, double padding);
// The rows of a padded tensor, which is kept with `batch_sizes`. Differentiable.
at::Tensor pack_padded(const at::Tensor& padded, const at::Tensor& batch_sizes);
// Whether `data` was packed from a padded tensor whose batch is split.
bool splits_batch(const at::Tensor& data, const at::Tensor& batch_sizes);

}  // namespace dtensor::internal
