#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/kernels/cuda/philox.h"

namespace dtensor {

namespace internal {

template <>
struct RandomCast<__half> {
  static DTENSOR_HOST_DEVICE __half from(double value) { return __float2half(static_cast<float>(value)); }
  static DTENSOR_HOST_DEVICE __half from_integer(int64_t value) { return __float2half(static_cast<float>(value)); }
  static DTENSOR_HOST_DEVICE double to_double(__half value) { return __half2float(value); }
};

template <>
struct RandomCast<__nv_bfloat16> {
  static DTENSOR_HOST_DEVICE __nv_bfloat16 from(double value) { return __float2bfloat16(static_cast<float>(value)); }
  static DTENSOR_HOST_DEVICE __nv_bfloat16 from_integer(int64_t value) {
    return __float2bfloat16(static_cast<float>(value));
  }
  static DTENSOR_HOST_DEVICE double to_double(__nv_bfloat16 value) { return __bfloat162float(value); }
};

}  // namespace internal

namespace cuda {
using namespace internal;

namespace {

template <typename T>
__global__ void fill(PhiloxPart part, RandomDraw draw, uint64_t key, uint64_t stream, const double* probabilities) {
  const int64_t step = static_cast<int64_t>(blockDim.x) * gridDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < part.numel; i += step) {
    int64_t rest = i, place = 0, end = 0;
    for (int d = 0; d < part.ndim; ++d) end += part.sizes[d];
    for (int d = part.ndim - 1; d >= 0; --d) {
      end -= part.sizes[d];
      place += part.offsets[end + rest % part.sizes[d]];
      rest /= part.sizes[d];
    }
    RandomDraw own = draw;
    if (probabilities != nullptr) own.a = probabilities[i];
    static_cast<T*>(part.data)[i] = draw_value<T>(own, key, static_cast<uint64_t>(place), stream);
  }
}

template <typename T>
void launch(const PhiloxPart& part, const RandomDraw& draw, uint64_t key, uint64_t stream, const double* probabilities,
            cudaStream_t cuda_stream) {
  constexpr int kThreads = 256;
  const int64_t blocks = std::min<int64_t>((part.numel + kThreads - 1) / kThreads, 4096);
  fill<T><<<static_cast<unsigned>(blocks), kThreads, 0, cuda_stream>>>(part, draw, key, stream, probabilities);
}

}  // namespace

const char* philox_fill(const PhiloxPart& part, const RandomDraw& draw, uint64_t key, uint64_t stream,
                        const double* probabilities, void* cuda_stream) {
  if (part.numel == 0) return nullptr;
  const auto run = [&](auto zero) {
    launch<decltype(zero)>(part, draw, key, stream, probabilities, static_cast<cudaStream_t>(cuda_stream));
  };
  switch (part.type) {
    case PhiloxType::kBool:
      run(bool{});
      break;
    case PhiloxType::kByte:
      run(uint8_t{});
      break;
    case PhiloxType::kChar:
      run(int8_t{});
      break;
    case PhiloxType::kShort:
      run(int16_t{});
      break;
    case PhiloxType::kInt:
      run(int32_t{});
      break;
    case PhiloxType::kLong:
      run(int64_t{});
      break;
    case PhiloxType::kHalf:
      run(__half{});
      break;
    case PhiloxType::kBFloat16:
      run(__nv_bfloat16{});
      break;
    case PhiloxType::kFloat:
      run(float{});
      break;
    case PhiloxType::kDouble:
      run(double{});
      break;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace cuda
}  // namespace dtensor
