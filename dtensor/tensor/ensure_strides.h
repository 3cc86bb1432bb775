// The strides of a plain tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <cstdint>
#include <vector>

namespace dtensor::internal {

// Dense strides of a tensor of these sizes, with its dims in the order of the given strides.
std::vector<int64_t> dense_in_order_of(c10::IntArrayRef strides, c10::IntArrayRef sizes);

// Whether `t` has these strides, those of dims of size 1 aside. Without elements it has any.
inline bool has_strides(const at::Tensor& t, c10::IntArrayRef strides) {
  for (int64_t d = 0; d < t.dim() && t.numel() > 0; ++d) {
    if (t.size(d) > 1 && t.stride(d) != strides[d]) return false;
  }
  return true;
}

// Copies `t` if it has other strides, into pinned memory if it is pinned. Below autograd.
inline void ensure_strides(at::Tensor& t, c10::IntArrayRef strides) {
  if (has_strides(t, strides)) return;
  t = at::empty_strided(t.sizes(), strides, t.options().pinned_memory(t.is_pinned())).copy_(t);
}

}  // namespace dtensor::internal
