// Shape, strides and dtype of a tensor, as one device would hold it.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

#include "comm/tensor_text.h"
#include "placement/geometry.h"

namespace dtensor {

// What a number does to a sum: one that is not finite, as a factor, and 0, as a divisor, give infinities of either sign
// in the addends, and nan as their sum.
enum class NumberClass : uint8_t { kOrdinary, kZero, kNonFinite };

// Global shape, strides (of the tensor as one device would hold it) and dtype.
struct TensorMeta {
  Shape sizes;
  Shape strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Of dim 0, and made from a number (Python's `t + 0.5`): takes part in type promotion as the number would.
  bool wrapped_number = false;
  NumberClass number = NumberClass::kOrdinary;  // of a wrapped number

  int64_t numel() const;
  int64_t bytes() const;
  friend bool operator==(const TensorMeta& a, const TensorMeta& b) {
    return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides && a.wrapped_number == b.wrapped_number &&
           a.number == b.number;
  }
};

std::string to_string(const TensorMeta& meta);  // "f32[8, 8]"

// Row-major strides, as at::empty gives them.
Shape row_major_strides(c10::ArrayRef<int64_t> sizes);

// The dims are a permutation of a contiguous tensor's: its elements neither overlap nor leave gaps.
bool is_dense(const TensorMeta& meta);
// Of the same values in memory of their own: dense, as Tensor::clone() makes them.
TensorMeta in_own_memory(TensorMeta meta);

}  // namespace dtensor
