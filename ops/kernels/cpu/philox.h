// Fills a rank's part of a tensor with counter-based random numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ops/kernels/philox.h"

namespace dtensor::cpu {

// What each index of each dim of the part contributes to an element's number in the row-major global tensor: the
// element at local index (i, j) is global element offsets[0][i] + offsets[1][j].
using GlobalOffsets = std::vector<std::vector<int64_t>>;

// Element g of the global tensor gets the value drawn for (key, counter g, stream). `part` is contiguous.
void philox_fill(const at::Tensor& part, const GlobalOffsets& offsets, const internal::RandomDraw& draw, uint64_t key,
                 uint64_t stream);

// 1 with the probability that `probabilities` (double, contiguous, of the part's sizes) holds for each element, else 0.
void philox_bernoulli(const at::Tensor& part, const at::Tensor& probabilities, const GlobalOffsets& offsets,
                      uint64_t key);

}  // namespace dtensor::cpu
