// Lookups into the rows of a table that one rank holds, and their gradient, each in one pass over the ids.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::cpu {

// Rows [offset, offset + part.size(0)) of a table of `num_rows`, looked up: zeros for ids of other rows. `ids`: int32
// or int64, of any shape. Error (IndexError): an id outside [0, num_rows).
at::Tensor masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows);

// The gradient of these rows, [num_own_rows, features], for `grad` of the lookup's sizes (float, double, half or
// bfloat16): the sum of the gradients of each row's ids, in order of position, so the same bits with any number of
// threads. Half and bfloat16 are added up in float. `padding_idx` counts from the table's first row; -1: none.
// At most 2^31 - 1 ids. Error (IndexError): as above.
at::Tensor masked_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                                     int64_t num_own_rows, int64_t num_rows, int64_t padding_idx);

}  // namespace dtensor::cpu
