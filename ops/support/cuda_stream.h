// The stream on which LibTorch queues work, for our CUDA kernels.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtensor::internal {

// A cudaStream_t.
inline void* current_cuda_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return guard.getStreamNativeHandle(guard.getStream(device));
}

}  // namespace dtensor::internal
