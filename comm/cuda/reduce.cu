#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "comm/combine.h"
#include "comm/cuda/reduce.h"

namespace dtensor::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 8 * 1024;  // of a grid; each takes several chunks where there are more
constexpr int64_t kChunkBytes = 16;        // that one instruction loads or stores

// The type that numbers of type T are reduced in.
template <typename T>
struct Wide {
  using Type = T;
  static __device__ T of(T x) { return x; }
  static __device__ T back(T x) { return x; }
};
template <>
struct Wide<__half> {
  using Type = float;
  static __device__ float of(__half x) { return __half2float(x); }
  static __device__ __half back(float x) { return __float2half(x); }
};
template <>
struct Wide<__nv_bfloat16> {
  using Type = float;
  static __device__ float of(__nv_bfloat16 x) { return __bfloat162float(x); }
  static __device__ __nv_bfloat16 back(float x) { return __float2bfloat16(x); }
};

template <typename T, int kNumbers>
struct alignas(kNumbers * sizeof(T)) Numbers {
  T values[kNumbers];
};

// Chunk `chunk` of kNumbers numbers.
template <typename T, int kNumbers, typename Op>
__device__ void reduce_chunk(const Reduced& r, int64_t chunk) {
  using A = typename Wide<T>::Type;
  A all[kNumbers];
  const auto first = static_cast<const Numbers<T, kNumbers>*>(r.addends[0])[chunk];
  for (int e = 0; e < kNumbers; ++e) all[e] = Wide<T>::of(first.values[e]);
#pragma unroll 4
  for (int a = 1; a < r.num_addends; ++a) {
    const auto next = static_cast<const Numbers<T, kNumbers>*>(r.addends[a])[chunk];
    for (int e = 0; e < kNumbers; ++e) all[e] = Op()(all[e], Wide<T>::of(next.values[e]));
  }
  Numbers<T, kNumbers> result;
  for (int e = 0; e < kNumbers; ++e) {
    if (r.average) all[e] /= static_cast<A>(r.num_addends);
    result.values[e] = Wide<T>::back(all[e]);
  }
  for (int o = 0; o < r.num_outputs; ++o) static_cast<Numbers<T, kNumbers>*>(r.outputs[o])[chunk] = result;
}

// Chunks of kNumbers numbers, and the numbers that are left one by one.
template <typename T, int kNumbers, typename Op>
__global__ void reduce_numbers(Reduced r) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads, chunks = r.numel / kNumbers;
  for (int64_t chunk = thread; chunk < chunks; chunk += threads) reduce_chunk<T, kNumbers, Op>(r, chunk);
  const int64_t left = chunks * kNumbers + thread;
  if (left < r.numel) reduce_chunk<T, 1, Op>(r, left);
}

bool is_aligned(const Reduced& r) {
  const auto is = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % kChunkBytes == 0; };
  return std::all_of(r.addends, r.addends + r.num_addends, is) && std::all_of(r.outputs, r.outputs + r.num_outputs, is);
}

template <typename T, typename Op>
void launch(const Reduced& r, cudaStream_t stream) {
  constexpr int kNumbers = kChunkBytes / sizeof(T);
  const bool wide = is_aligned(r);
  const int64_t items = wide ? r.numel / kNumbers + kNumbers : r.numel;
  const auto blocks = static_cast<unsigned>(std::min((items + kThreads - 1) / kThreads, kMostBlocks));
  if (wide) {
    reduce_numbers<T, kNumbers, Op><<<blocks, kThreads, 0, stream>>>(r);
  } else {
    reduce_numbers<T, 1, Op><<<blocks, kThreads, 0, stream>>>(r);
  }
}

template <typename T>
void launch(const Reduced& r, cudaStream_t stream) {
  switch (r.reduction) {
    case Reduction::kSum:
      return launch<T, internal::Sum>(r, stream);
    case Reduction::kProduct:
      return launch<T, internal::Product>(r, stream);
    case Reduction::kMin:
      return launch<T, internal::Min>(r, stream);
    case Reduction::kMax:
      return launch<T, internal::Max>(r, stream);
  }
}

}  // namespace

const char* reduce(const Reduced& r, void* cuda_stream) {
  if (r.numel == 0) return nullptr;
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  switch (r.type) {
    case ReducedType::kHalf:
      launch<__half>(r, stream);
      break;
    case ReducedType::kBFloat16:
      launch<__nv_bfloat16>(r, stream);
      break;
    case ReducedType::kFloat:
      launch<float>(r, stream);
      break;
    case ReducedType::kDouble:
      launch<double>(r, stream);
      break;
    case ReducedType::kInt:
      launch<int32_t>(r, stream);
      break;
    case ReducedType::kLong:
      launch<int64_t>(r, stream);
      break;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace dtensor::cuda
