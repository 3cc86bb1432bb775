// The order of a plain tensor's dims in memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

namespace dtensor::internal {

// Copies `t` if it has other strides, those of dims of size 1 aside. Below autograd.
inline void ensure_strides(at::Tensor& t, c10::IntArrayRef strides) {
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) <= 1 || t.stride(d) == strides[d]) continue;
    t = at::empty_strided(t.sizes(), strides, t.options()).copy_(t);
    return;
  }
}

}  // namespace dtensor::internal
