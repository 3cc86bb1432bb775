#include "ops/embedding/kernel_arguments.h"

#include <limits>

#ifdef DTENSOR_HAVE_CUDA
#include <ATen/ops/empty.h>

#include "ops/kernels/cuda/sorted_ids.h"
#endif

namespace dtensor::internal {

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
