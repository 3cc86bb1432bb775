// What .cu files share: how threads are laid out, and element types that are added up in float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "ops/kernels/embedding.h"

namespace dtensor {

namespace internal {

template <>
struct SumType<__half> {
  using Type = float;
  static DTENSOR_HOST_DEVICE float widen(__half value) { return __half2float(value); }
  static DTENSOR_HOST_DEVICE __half narrow(float sum) { return __float2half(sum); }
};

template <>
struct SumType<__nv_bfloat16> {
  using Type = float;
  static DTENSOR_HOST_DEVICE float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
  static DTENSOR_HOST_DEVICE __nv_bfloat16 narrow(float sum) { return __float2bfloat16(sum); }
};

}  // namespace internal

namespace cuda {

constexpr int kThreads = 256;          // of a block
constexpr int64_t kMaxBlocks = 65535;  // in any dim of a grid

// Not assert(), which NDEBUG removes.
__device__ inline void check_on_device(bool holds, const char* text, const char* file, int line) {
  if (!holds) __assert_fail(text, file, line, "dtensor");
}

__device__ inline void check_in_table(int64_t id, const internal::TableRows& rows) {
  check_on_device(internal::is_in_table(id, rows), "index out of range in self", __FILE__, __LINE__);
}

// The threads of a block for items of `chunks` chunks: x chunks of y items, where x is a power of two up to `most`.
inline dim3 block_of(int64_t chunks, unsigned most) {
  unsigned lanes = 1;
  while (lanes < most && lanes < chunks) lanes *= 2;
  return dim3(lanes, kThreads / lanes);
}

inline unsigned blocks_for(int64_t items, int64_t items_per_block, int64_t most) {
  return static_cast<unsigned>(std::min((items + items_per_block - 1) / items_per_block, most));
}

inline const char* error_text(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }
inline const char* launch_error() { return error_text(cudaGetLastError()); }

// f(T()) for the type of elements.
template <typename F>
void with_elements(internal::ElementType type, const F& f) {
  switch (type) {
    case internal::ElementType::kHalf:
      return f(__half());
    case internal::ElementType::kBFloat16:
      return f(__nv_bfloat16());
    case internal::ElementType::kFloat:
      return f(float());
    case internal::ElementType::kDouble:
      return f(double());
  }
}

template <typename T, int kElements>
__device__ void store_sum(const typename internal::SumType<T>::Type (&sum)[kElements],
                          internal::Elements<T, kElements>* out) {
  internal::Elements<T, kElements> result;
  for (int e = 0; e < kElements; ++e) result.values[e] = internal::SumType<T>::narrow(sum[e]);
  *out = result;
}

}  // namespace cuda
}  // namespace dtensor
