// The groups of processes with a GPU each: c10d's own NCCL backend.
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/env.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "processes/nccl/functions.h"

namespace dtensor::internal {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout) {
  // c10d's watchdog would end the process when NCCL loses a connection. With this setting, it aborts the group and
  // reports that by getError(), and the job reports the reason to all ranks. A setting of the user stays.
  c10::utils::set_env("TORCH_NCCL_ASYNC_ERROR_HANDLING", std::to_string(c10d::CleanUpOnly).c_str(),
                      /*overwrite=*/false);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  // The job has the same deadline and names the rank that is missing; c10d's own is for when the job's thread is stuck.
  options->timeout = 2 * timeout + std::chrono::seconds(30);
  const c10::DeviceGuard guard(device);
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(options));
  group->setBoundDeviceId(device);
  // Now, as all ranks are here: at the first collective they might not come.
  group->eagerConnectSingleDevice(device);
  return group;
}

void prepare_nccl_watch(c10::Device device) {
  // Else destroying an event, which restores the thread's device, would take memory of GPU 0.
  c10::cuda::set_device(device.index());
  // Queries of events would be an error in a capture that another thread has begun in the default mode.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
}

}  // namespace dtensor::internal
