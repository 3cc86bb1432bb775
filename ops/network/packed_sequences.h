// Sequences of unequal length, packed: the first steps of all, then the second ones of those that have one, ... as rows
// of `data`; `batch_sizes`, a plain tensor on the CPU, says how many rows each step has. Internal to ops/.
//
// No layout of the rows gives every rank the steps of its own sequences, so what ranks have packed of their parts of a
// split batch is Partial: zeros where others have rows. The padded form that it was packed from is kept with
// `batch_sizes`, which goes wherever the packed sequences go. So pack, a recurrent network and pad communicate nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtensor {

// [steps, batch, ...], with `padding` behind the end of each sequence. Differentiable. REQUIRES: `data` is distributed,
// `steps` as large as batch_sizes or larger.
at::Tensor pad_packed(const at::Tensor& data, const at::Tensor& batch_sizes, int64_t steps, double padding);
// The rows of a padded tensor, of which the padded form is known. Differentiable.
at::Tensor pack_padded(const at::Tensor& padded, const at::Tensor& batch_sizes);
// Was `data` packed from a padded tensor whose batch is split?
bool splits_batch(const at::Tensor& data, const at::Tensor& batch_sizes);

}  // namespace dtensor
