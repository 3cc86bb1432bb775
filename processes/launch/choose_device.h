// Which backend and device the rank of this process uses.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "processes/launch/launch_env.h"

namespace dtensor::internal {

struct DeviceChoice {
  std::string backend;  // "gloo" or "nccl"
  c10::Device device;
};
// `cuda_devices`: how many this process sees.
// Errors (c10::Error): an option is unknown, two contradict each other, or this host has no such device; the text says
// what would work.
DeviceChoice choose_device(const LaunchOptions& options, const JobPlace& place, int64_t cuda_devices);

}  // namespace dtensor::internal
