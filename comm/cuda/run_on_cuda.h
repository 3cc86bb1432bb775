// Our CUDA kernels on the stream on which LibTorch queues work.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace dtensor::internal {

// A cudaStream_t.
inline void* current_cuda_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return guard.getStreamNativeHandle(guard.getStream(device));
}

// Calls kernel(stream), which returns the text of an error or null, where `device` is the current one. Error
// (c10::Error): the text, after `op`.
template <typename Kernel>
void run_on_cuda(const char* op, c10::Device device, const Kernel& kernel) {
  const c10::DeviceGuard guard(device);
  const char* error = kernel(current_cuda_stream(device));
  TORCH_CHECK(error == nullptr, op, ": ", error);
}

}  // namespace dtensor::internal
