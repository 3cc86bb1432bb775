// The rows of packed sequences, and those of padded ones: what each rank has moves between the two, below autograd.
// Internal to ops/; see packed_sequences.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtensor {

// Of `batch_sizes`: how many rows each step has. Moves nothing: it is plain, or replicated. Errors: not on the CPU.
std::vector<int64_t> numbers_of_rows(const at::Tensor& batch_sizes);
// How long each sequence is, on the CPU.
at::Tensor lengths_of(const std::vector<int64_t>& sizes);

// [steps, batch, ...] -> [rows, ...]. Where steps or batch are split, the result is Partial: zeros where others have
// rows. What cannot be added up is gathered first.
at::Tensor pack_rows(const at::Tensor& padded, const std::vector<int64_t>& sizes);
// [rows, ...] -> [steps, batch, ...], with `padding` behind the end of each sequence. Likewise where rows are split.
at::Tensor pad_rows(const at::Tensor& data, const std::vector<int64_t>& sizes, int64_t steps, double padding);
// What is padded already, with so many steps and such padding, in its own layout. REQUIRES: every rank has all steps.
at::Tensor pad_again(const at::Tensor& padded, const std::vector<int64_t>& sizes, int64_t steps, double padding);

}  // namespace dtensor
