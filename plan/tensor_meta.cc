#include "plan/tensor_meta.h"

#include <ATen/ExpandUtils.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace dtensor {
using namespace internal;

int64_t TensorMeta::numel() const {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return n;
}

int64_t TensorMeta::bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

Shape row_major_strides(c10::ArrayRef<int64_t> sizes) {
  Shape strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

namespace internal {

bool is_row_major(const TensorMeta& meta) {
  int64_t expected = 1;
  for (size_t d = meta.sizes.size(); d-- > 0;) {
    if (meta.strides[d] != expected) return false;
    expected *= std::max<int64_t>(meta.sizes[d], 1);
  }
  return true;
}

bool is_dense(const TensorMeta& meta) {
  if (is_row_major(meta)) return true;  // most are
  std::vector<size_t> order;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] != 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return meta.strides[a] < meta.strides[b]; });
  int64_t expected = 1;
  for (size_t d : order) {
    if (meta.strides[d] != expected) return false;
    expected *= meta.sizes[d];
  }
  return true;
}

TensorMeta in_own_memory(TensorMeta meta) {
  if (is_dense(meta)) return meta;
  const auto strides = at::infer_dense_strides(at::IntArrayRef(meta.sizes.data(), meta.sizes.size()),
                                               at::IntArrayRef(meta.strides.data(), meta.strides.size()));
  meta.strides.assign(strides.begin(), strides.end());
  return meta;
}

}  // namespace internal

std::string to_string(const TensorMeta& meta) { return tensor_text(meta.dtype, meta.sizes); }

}  // namespace dtensor
