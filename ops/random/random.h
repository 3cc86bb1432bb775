// Random numbers on distributed tensors.
//
// An operator draws one key from its generator (the default CPU generator unless one is given, so torch::manual_seed
// counts), and the element at row-major place g of the global tensor gets the value that Philox gives for (key, g).
// Replicas agree, shards never repeat each other, and the same seed gives the same tensor on every mesh and in every
// layout, a mesh of one rank included. Every process must have seeded its generator alike. An abstract world draws
// nothing. Implemented in random_fill.cc; the operators are in random.cc.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/kernels/philox.h"

namespace dtensor::internal {

// Advances the generator and returns the key of one operator. Thread-safe.
uint64_t draw_random_key(const std::optional<at::Generator>& generator);

// Fills the local parts of a distributed tensor of any real dtype.
// For a Partial, one rank holds the drawn values, and the others the reduction's neutral element.
void fill_random(const at::Tensor& tensor, const RandomDraw& draw, uint64_t key);

// 1 with the probability in `probability` (distributed, broadcasting to `tensor`) for each element, else 0.
void fill_bernoulli(const at::Tensor& tensor, const at::Tensor& probability, uint64_t key);

}  // namespace dtensor::internal
