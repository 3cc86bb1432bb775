// The reduction of tensors that are in one process, in the same order and precision by every communicator, so that
// results are the same bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/types/span.h"
#include "placement/geometry.h"
#include "placement/placement.h"

namespace dtensor::internal {

// Writes the reduction of `addends`, in this order, into every one of `outputs`; half types accumulate in float32. For
// bool, sum is "or" and product is "and", as ATen's add and mul have it. Devices may differ. On a CPU, and on
// one GPU (contiguous memory, at most 16 addends and outputs), no partial sums pass through memory; large tensors are
// shared out to ATen's threads on a CPU.
// REQUIRES: at least one addend, one shape and dtype; outputs share memory with nothing.
void reduce_in_order(absl::Span<const at::Tensor> outputs, absl::Span<const at::Tensor> addends, ReduceOp op);

// The block of `tensor` that begins at `offsets`.
struct TensorBlock {
  const at::Tensor* tensor;
  const Shape* offsets;
};

// reduce_in_order() of blocks of `sizes`. Makes no tensors where all blocks are dense on a CPU, so that a small one
// costs little.
void reduce_blocks_in_order(const TensorBlock& output, absl::Span<const TensorBlock> addends, const Shape& sizes,
                            ReduceOp op);

// Bytes that reduce_in_order() holds at most per element of an output, besides addends and outputs, if there are
// several addends.
int64_t reduce_in_order_bytes(at::ScalarType dtype, ReduceOp op);

}  // namespace dtensor::internal
