#include "ops/support/meta_tensor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

namespace dtensor::internal {

OutputMetas metas_of(const std::vector<at::Tensor>& tensors) {
  OutputMetas metas;
  for (const auto& t : tensors) {
    metas.counts.push_back(-1);
    metas.tensors.push_back(t.defined() ? std::optional(read_meta(t)) : std::nullopt);
  }
  return metas;
}

OutputMetas contiguous_metas(c10::IntArrayRef sizes, const std::vector<c10::ScalarType>& dtypes) {
  std::vector<at::Tensor> outputs;
  for (const auto dtype : dtypes)
    outputs.push_back(at::empty(sizes, at::TensorOptions(dtype).device(c10::DeviceType::Meta)));
  return metas_of(outputs);
}

OutputMetas in_format_of(const Spec& t, OutputMetas metas) {
  const auto format = meta_tensor(t).suggest_memory_format();
  for (auto& meta : metas.tensors) {
    if (!meta) continue;
    const auto options = at::TensorOptions(meta->dtype).device(c10::DeviceType::Meta).memory_format(format);
    meta = read_meta(at::empty({meta->sizes.data(), meta->sizes.size()}, options));
  }
  return metas;
}

std::vector<int64_t> local_strides(c10::IntArrayRef sizes, c10::IntArrayRef global_strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  // Innermost first; of equal strides the last dim, as in a row-major tensor with dims of size 1.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return global_strides[a] != global_strides[b] ? global_strides[a] < global_strides[b] : a > b;
  });
  std::vector<int64_t> strides(sizes.size());
  int64_t next = 1;
  for (size_t d : order) {
    strides[d] = next;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

}  // namespace dtensor::internal
