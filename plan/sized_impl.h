// A TensorImpl whose sizes are set faster than LibTorch sets them: what follows from sizes and strides is copied from a
// spec, where it was computed once, or is known for row-major tensors.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstdint>

namespace dtensor::internal {

class SizedImpl : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  // As set_sizes_contiguous() on a new tensor, whose flags are those of a contiguous one already.
  void set_first_sizes(c10::IntArrayRef sizes) {
    sizes_and_strides_.resize(sizes.size());
    int64_t* const own_sizes = sizes_and_strides_.sizes_data();
    int64_t* const own_strides = sizes_and_strides_.strides_data();
    int64_t stride = 1, numel = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      own_sizes[d] = sizes[d];
      own_strides[d] = stride;
      stride *= std::max<int64_t>(sizes[d], 1);
      numel *= sizes[d];
    }
    numel_ = numel;
    if (sizes.size() == 4 || sizes.size() == 5) refresh_contiguous();  // may also be channels_last
  }

  // As set_sizes_and_strides() on a new tensor, to those of `other`. REQUIRES: this one is new, with the flags of one.
  void copy_first_sizes(const SizedImpl& other) {
    sizes_and_strides_ = other.sizes_and_strides_;
    numel_ = other.numel_;
    if (other.is_contiguous_ && other.sizes_and_strides_.size() < 4) return;  // as a new tensor: nothing else to copy
    // Read first, then written: they are bits of one word.
    const bool contiguous = other.is_contiguous_, dense = other.is_non_overlapping_and_dense_;
    const bool last = other.is_channels_last_, last_contiguous = other.is_channels_last_contiguous_;
    const bool last_3d = other.is_channels_last_3d_, last_3d_contiguous = other.is_channels_last_3d_contiguous_;
    is_contiguous_ = contiguous;
    is_non_overlapping_and_dense_ = dense;
    is_channels_last_ = last;
    is_channels_last_contiguous_ = last_contiguous;
    is_channels_last_3d_ = last_3d;
    is_channels_last_3d_contiguous_ = last_3d_contiguous;
  }
};

}  // namespace dtensor::internal
