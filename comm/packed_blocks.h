// Blocks of messages, one right after the other in a buffer of bytes, so that a plan can compute its size.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/comm_call.h"

namespace dtensor::internal {

// The bytes of a message's block in a buffer. `end`: the tensor that it comes from or goes to.
int64_t message_bytes(const Message& m, const at::Tensor& end);
// Copy the block between a tensor and the buffer, at `offset`, on the same device. Where tensors of several dtypes
// share a buffer, a block may lie where its dtype cannot begin: then by way of a copy.
void pack(const Message& m, const at::Tensor& from, const at::Tensor& buffer, int64_t offset);
void unpack(const Message& m, const at::Tensor& buffer, int64_t offset, const at::Tensor& to);

}  // namespace dtensor::internal
