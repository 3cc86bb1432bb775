// Lookups into the rows of a table that one rank holds, in one pass over the ids.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::cpu {

// Rows [offset, offset + part.size(0)) of a table of `num_rows`, looked up: zeros for ids of other rows. `ids`: int32
// or int64, of any shape. Error (IndexError): an id outside [0, num_rows).
at::Tensor masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows);

}  // namespace dtensor::cpu
