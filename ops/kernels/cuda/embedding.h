// Lookups into the rows of a table that one rank holds, and their gradient, on a CUDA device: what
// ops/kernels/cpu/embedding.h computes. All memory is contiguous memory of the current device; work is queued on
// `cuda_stream` (a cudaStream_t). An id outside the table is a device assertion, as in ATen. Functions return the text
// of a launch error, or null.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/kernels/embedding.h"

namespace dtensor::cuda {

struct EmbeddingIds {
  const void* data = nullptr;  // int32_t or int64_t
  bool are_int32 = false;
  int64_t count = 0;
};

// Writes ids.count rows of `row_bytes` bytes to `out`; `table` has rows.size of them.
const char* masked_embedding(const void* table, const EmbeddingIds& ids, const internal::TableRows& rows,
                             int64_t row_bytes, void* out, void* cuda_stream);

enum class GradientType : uint8_t { kHalf, kBFloat16, kFloat, kDouble };

// `grad`: [ids.count, features]; `out`: [rows.size, features]. At most 2^31 - 1 ids and 2^31 - 2 own rows.
struct EmbeddingGradient {
  const void* grad = nullptr;
  GradientType type = GradientType::kFloat;
  int64_t features = 0;
  EmbeddingIds ids;
  internal::TableRows rows;
  void* out = nullptr;
};

// Sets `bytes` to the size of the device memory that masked_embedding_backward() needs as `scratch`.
const char* masked_embedding_scratch(const EmbeddingGradient& g, size_t& bytes);

// Adds without atomics, in an order that depends on the ids and shapes alone: the same bits every time. Half and
// bfloat16 are added up in float.
const char* masked_embedding_backward(const EmbeddingGradient& g, void* scratch, size_t scratch_bytes,
                                      void* cuda_stream);

}  // namespace dtensor::cuda
