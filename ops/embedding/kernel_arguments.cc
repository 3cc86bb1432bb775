#include "ops/embedding/kernel_arguments.h"

#include <c10/util/Exception.h>

#include <limits>

#ifdef DTENSOR_HAVE_CUDA
#include <ATen/ops/empty.h>

#include "ops/kernels/cuda/sorted_ids.h"
#endif

namespace dtensor::internal {

void check_rows(const char* op, int64_t offset, int64_t size, int64_t num_rows) {
  TORCH_CHECK_VALUE(offset >= 0 && size >= 0 && offset + size <= num_rows, op, ": rows [", offset, ", ", offset + size,
                    ") are not all within the table's ", num_rows, " rows (arguments offset, num_rows)");
}

bool can_sort(const at::Tensor& ids, int64_t num_own_rows) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return has_index_type(ids) && ids.numel() <= kMost && num_own_rows < kMost;
}

#ifdef DTENSOR_HAVE_CUDA
at::Tensor memory_to_sort(const at::Tensor& ids, const TableRows& rows, const char* op) {
  size_t bytes = 0;
  const char* error =
      cuda::sort_scratch({ids.const_data_ptr(), ids.scalar_type() == at::kInt, ids.numel()}, rows, bytes);
  TORCH_CHECK(error == nullptr, op, ": ", error);
  return at::empty({static_cast<int64_t>(bytes)}, ids.options().dtype(at::kByte));
}
#endif

}  // namespace dtensor::internal
