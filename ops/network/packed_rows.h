// Moves each rank's part between the rows of packed sequences and padded tensors, below autograd. See
// packed_sequences.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtensor::internal {

// The values of `batch_sizes`: the number of rows of each step. Communicates nothing: it is plain, or replicated.
// Errors: not on the CPU.
std::vector<int64_t> numbers_of_rows(const at::Tensor& batch_sizes);
// The length of each sequence, on the CPU.
at::Tensor lengths_of(const std::vector<int64_t>& sizes);

// [steps, batch, ...] -> [rows, ...]. Where steps or batch are split, the result is Partial: zeros for rows of other
// ranks. Inputs that cannot be added up are gathered first.
at::Tensor pack_rows(const at::Tensor& padded, const std::vector<int64_t>& sizes);
// [rows, ...] -> [steps, batch, ...], with `padding` behind the end of each sequence. Partial likewise where rows are
// split.
at::Tensor pad_rows(const at::Tensor& data, const std::vector<int64_t>& sizes, int64_t steps, double padding);
// Pads a padded tensor again, for the given number of steps and padding value, in its own layout. REQUIRES: every rank
// has all steps.
at::Tensor pad_again(const at::Tensor& padded, const std::vector<int64_t>& sizes, int64_t steps, double padding);

}  // namespace dtensor::internal
