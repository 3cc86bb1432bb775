// Gradients of one backward that are reduced together.
//
// A data-parallel step would call one all-reduce for each parameter. The gradients of one backward() wait for each
// other instead, Partial as they are, up to kGradientBucketBytes; then, and at the end of the backward, all that wait
// are brought to their parameters' layouts in as few collectives as can be. Waiting takes no memory: what would be
// larger than the parameter's own part (a gradient that is to be split, as fully sharded ones) is reduced at once.
//
// Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor {

// Of the largest part of each tensor, so that all ranks begin at the same one.
constexpr int64_t kGradientBucketBytes = 25 << 20;

// Inside backward: whether `gradient` may go on to `leaf`.grad as it is, since it is brought to the leaf's layout
// before backward() returns. False where somebody could see or need it before: hooks of the leaf or of its accumulator,
// a .grad that it is added to, gradients of gradients, gradients of chosen tensors.
bool waits_in_bucket(const at::Tensor& leaf, const at::Tensor& gradient);

// Brings the gradients of `leaves`, of one world, to the leaves' layouts, in place of .grad. `op`: as CommCause::op.
void reduce_together(const std::vector<at::Tensor>& leaves, const std::string& op, bool implicit);

}  // namespace dtensor
