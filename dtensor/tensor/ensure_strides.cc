#include "dtensor/tensor/ensure_strides.h"

#include <ATen/ExpandUtils.h>

namespace dtensor::internal {

std::vector<int64_t> dense_in_order_of(c10::IntArrayRef strides, c10::IntArrayRef sizes) {
  return at::infer_dense_strides(sizes, strides);
}

}  // namespace dtensor::internal
