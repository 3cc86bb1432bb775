#include "ops/kernels/cpu/embedding.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

namespace dtensor::cpu {
namespace {

template <typename Id>
void look_up(const char* table, const Id* ids, char* out, int64_t count, size_t row_bytes, int64_t offset, int64_t size,
             int64_t num_rows) {
  constexpr int64_t kGrainBytes = 1 << 15;
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / static_cast<int64_t>(std::max<size_t>(row_bytes, 1)));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto id = static_cast<int64_t>(ids[i]);
      TORCH_CHECK_INDEX(id >= 0 && id < num_rows, "index out of range in self");
      char* row = out + i * row_bytes;
      if (id >= offset && id < offset + size) {
        std::memcpy(row, table + (id - offset) * row_bytes, row_bytes);
      } else {
        std::memset(row, 0, row_bytes);  // zero in every dtype
      }
    }
  });
}

}  // namespace

at::Tensor masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows) {
  const at::Tensor table = part.contiguous(), flat_ids = ids.contiguous();
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(part.size(1));
  at::Tensor out = part.new_empty(sizes);
  const size_t row_bytes = part.size(1) * part.element_size();
  AT_DISPATCH_INDEX_TYPES(ids.scalar_type(), "masked_embedding", [&] {
    look_up(static_cast<const char*>(table.const_data_ptr()), flat_ids.const_data_ptr<index_t>(),
            static_cast<char*>(out.mutable_data_ptr()), ids.numel(), row_bytes, offset, part.size(0), num_rows);
  });
  return out;
}

}  // namespace dtensor::cpu
