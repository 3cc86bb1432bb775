// Which ids each row of a rank gets its gradient from, on a CUDA device.
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

// The ids of a row are at positions[starts[row]] to positions[starts[row + 1] - 1], in ascending order.
struct SortedIds {
  const int32_t *positions = nullptr, *starts = nullptr;
};

// Sets `bytes` to the size of the device memory that sort_ids() needs as `scratch`. At most 2^31 - 1 ids and 2^31 - 2
// own rows.
const char* sort_scratch(const EmbeddingIds& ids, const internal::TableRows& rows, size_t& bytes);

// `sorted` points into `scratch`. Ids without a gradient here are left out.
const char* sort_ids(const EmbeddingIds& ids, const internal::TableRows& rows, void* scratch, size_t scratch_bytes,
                     SortedIds& sorted, void* cuda_stream);

}  // namespace dtensor::cuda
