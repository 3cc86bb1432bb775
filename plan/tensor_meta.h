// Shape, strides and dtype of a tensor, as one device would hold it.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

#include "comm/tensor_text.h"
#include "placement/geometry.h"

namespace dtensor {

// The effect of a number on a Partial sum: a factor that is not finite, or a divisor of 0, gives infinities of either
// sign in the addends, and nan as their sum.
enum class NumberClass : uint8_t { kOrdinary, kZero, kNonFinite };

// Global shape, strides (of the tensor on a single device) and dtype.
struct TensorMeta {
  Shape sizes;
  Shape strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // A 0-dim tensor made from a number (Python's `t + 0.5`): takes part in type promotion like the number.
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

namespace internal {

// Strides as those of row_major_strides().
bool is_row_major(const TensorMeta& meta);
// The dims are a permutation of a contiguous tensor's: its elements neither overlap nor leave gaps.
bool is_dense(const TensorMeta& meta);
// The metadata of a copy in new memory: dense, as made by Tensor::clone().
TensorMeta in_own_memory(TensorMeta meta);

}  // namespace internal

}  // namespace dtensor
