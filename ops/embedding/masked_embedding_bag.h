// Embedding bags on plain tensors over the rows of a table that one rank holds, and their gradients. On CPU and CUDA
// each is one pass without a mask (ops/kernels/embedding_bag.h); for what those kernels do not take, it is composed of
// ATen's operators (composite_embedding_bag.h).
//
// Registered with LibTorch's dispatcher, with first derivatives and for tensors without data:
//
//   dtensor::masked_embedding_bag(Tensor part, Tensor ids, Tensor offsets, int offset, int num_rows, int mode=0,
//                                 Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1)
//       -> (Tensor result, Tensor bag_of_id, Tensor bag_size, Tensor max_ids)
//   dtensor::masked_embedding_bag_backward(Tensor grad, Tensor ids, Tensor bag_of_id, Tensor bag_size, Tensor max_ids,
//                                          int offset, int num_own_rows, int num_rows, int mode=0,
//                                          Tensor? per_sample_weights=None, int padding_idx=-1) -> Tensor
//   dtensor::masked_embedding_bag_weights_backward(Tensor grad, Tensor part, Tensor ids, Tensor bag_of_id, int offset,
//                                                  int num_rows, int padding_idx=-1) -> Tensor
#pragma once

#include "ops/embedding/composite_embedding_bag.h"

namespace dtensor::internal {

// As the functions of composite_embedding_bag.h. Gradients have the same bits every time, on any number of threads.
// Errors (IndexError): an id outside the table; offsets that do not begin with 0, descend or exceed the number of ids;
// on CUDA device assertions.
BagResults fused_masked_embedding_bag(const at::Tensor& part, const Bags& bags, const TableRows& rows);

at::Tensor fused_masked_embedding_bag_backward(const at::Tensor& grad, const BagsOfIds& bags, const TableRows& rows);

at::Tensor fused_masked_embedding_bag_weights_backward(const at::Tensor& grad, const at::Tensor& part,
                                                       const at::Tensor& ids, const at::Tensor& bag_of_id,
                                                       const TableRows& rows);

}  // namespace dtensor::internal
