// Vocabulary-parallel embedding on plain tensors: lookups into the rows of a table that one rank holds, and their
// gradient. On CPU and CUDA each is one pass without a mask (ops/kernels/embedding.h); for what those kernels do not
// take, it is composed of ATen's operators (mask_buffer.h).
//
// Registered with LibTorch's dispatcher, with autograd and for tensors without data:
//
//   dtensor::masked_embedding(Tensor part, Tensor ids, int offset, int num_rows, int padding_idx=-1) -> Tensor
//   dtensor::masked_embedding_backward(Tensor grad, Tensor ids, int offset, int num_own_rows, int num_rows,
//                                      int padding_idx=-1) -> Tensor
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

// Rows [offset, offset + part.size(0)) of a table of `num_rows`, looked up: zeros for ids of other rows. Error
// (IndexError): an id outside [0, num_rows); on CUDA a device assertion.
at::Tensor fused_masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows);

// The gradient of rows [offset, offset + num_own_rows), for the gradient of what was looked up: [num_own_rows,
// features]. Ids of other rows add nothing to it, nor does `padding_idx` (counted from the table's first row; -1: there
// is none). The same bits every time, on any number of threads. Errors as above.
at::Tensor fused_masked_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                                           int64_t num_own_rows, int64_t num_rows, int64_t padding_idx);

}  // namespace dtensor::internal
