// Tensors as arguments of the kernels of embeddings.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/kernels/embedding.h"
#include "ops/support/element_type.h"

namespace dtensor::internal {

// Whether the memory of `t` has its values.
inline bool has_own_values(const at::Tensor& t) { return !t.is_conj() && !t.is_neg(); }

inline bool has_index_type(const at::Tensor& ids) {
  return ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt;
}

// Error (ValueError): a table of `num_rows` rows does not have all rows [offset, offset + size). `op`: for its text.
void check_rows(const char* op, int64_t offset, int64_t size, int64_t num_rows);

// Whether kernels can sort the ids by row.
bool can_sort(const at::Tensor& ids, int64_t num_own_rows);

#ifdef DTENSOR_HAVE_CUDA
// Device memory for sorting contiguous ids by row (ops/kernels/cuda/sorted_ids.h). `op`: for error texts.
at::Tensor memory_to_sort(const at::Tensor& ids, const TableRows& rows, const char* op);
#endif

}  // namespace dtensor::internal
