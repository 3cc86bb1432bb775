// A TensorImpl whose sizes can be set faster where it is known to be contiguous.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstdint>

namespace dtensor::internal {

class ContiguousImpl : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  // As set_sizes_contiguous() on a new tensor, whose flags are those of a contiguous one already.
  void set_first_sizes(c10::IntArrayRef sizes) {
    sizes_and_strides_.resize(sizes.size());
    int64_t stride = 1, numel = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      sizes_and_strides_.size_at_unchecked(d) = sizes[d];
      sizes_and_strides_.stride_at_unchecked(d) = stride;
      stride *= std::max<int64_t>(sizes[d], 1);
      numel *= sizes[d];
    }
    numel_ = numel;
    if (sizes.size() == 4 || sizes.size() == 5) refresh_contiguous();  // may also be channels_last
  }
};

}  // namespace dtensor::internal
