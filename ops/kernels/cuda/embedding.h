// Lookups into the rows of a table that one rank holds, and their gradient, on a CUDA device: what
// ops/kernels/cpu/embedding.h computes. All memory is contiguous memory of the current device; work is queued on
// `cuda_stream` (a cudaStream_t). An id outside the table is a device assertion, as in ATen. Functions return the text
// of a launch error, or null.
#pragma once

#include "ops/kernels/cuda/sorted_ids.h"

namespace dtensor::cuda {

// Writes ids.count rows of `row_bytes` bytes to `out`; `table` has rows.size of them.
const char* masked_embedding(const void* table, const EmbeddingIds& ids, const internal::TableRows& rows,
                             int64_t row_bytes, void* out, void* cuda_stream);

// `grad`: [ids.count, features]; `out`: [rows.size, features]. At most 2^31 - 1 ids and 2^31 - 2 own rows.
struct EmbeddingGradient {
  const void* grad = nullptr;
  internal::ElementType type = internal::ElementType::kFloat;
  int64_t features = 0;
  EmbeddingIds ids;
  internal::TableRows rows;
  void* out = nullptr;
};

// Adds without atomics, in an order that depends on the ids and shapes alone: the same bits every time. Half and
// bfloat16 are added up in float. `scratch`: device memory of the size that sort_scratch() gives.
const char* masked_embedding_backward(const EmbeddingGradient& g, void* scratch, size_t scratch_bytes,
                                      void* cuda_stream);

}  // namespace dtensor::cuda
