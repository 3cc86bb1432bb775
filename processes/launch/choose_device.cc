#include "processes/launch/choose_device.h"

#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "processes/launch/launch_variables.h"

namespace dtensor::internal {
namespace {

// "cuda" is -1.
int64_t cuda_index(const std::string& device) {
  if (device == "cuda" || device.empty()) return -1;
  int64_t index = -1;
  const std::string digits = absl::StartsWith(device, "cuda:") ? device.substr(5) : "";
  const bool number = !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
  TORCH_CHECK(number && absl::SimpleAtoi(digits, &index) && index < 128, kFromEnv, "LaunchOptions::device is '", device,
              "'; expected cpu, cuda (the device of this process's local rank), or cuda:0 and so on");
  return index;
}

}  // namespace

DeviceChoice choose_device(const LaunchOptions& options, const JobPlace& place, int64_t cuda_devices) {
  const std::string& device = options.device;
  TORCH_CHECK(options.backend.empty() || options.backend == "gloo" || options.backend == "nccl", kFromEnv,
              "LaunchOptions::backend is '", options.backend,
              "'; expected gloo (CPU), nccl (CUDA), or nothing to let `device` decide");
  int64_t index = device == "cpu" ? -1 : cuda_index(device);
  const bool cuda =
      device.empty() ? options.backend == "nccl" || (options.backend.empty() && cuda_devices > 0) : device != "cpu";
  const char* of_device = cuda ? "nccl" : "gloo";
  TORCH_CHECK(options.backend.empty() || options.backend == of_device, kFromEnv, "LaunchOptions::backend is ",
              options.backend, ", but LaunchOptions::device is ", device, ", whose backend is ", of_device,
              "; give one of the two alone");
  if (!cuda) return {of_device, c10::Device(c10::DeviceType::CPU)};

  TORCH_CHECK(
      cuda_devices > 0, kFromEnv, "LaunchOptions asks for CUDA (backend '", options.backend, "', device '", device,
      "'), but this process sees no CUDA device: there is none, CUDA_VISIBLE_DEVICES hides it, or the program does not "
      "link libtorch_cuda. The device cpu would work");
  const bool own = index < 0;
  if (own) {
    TORCH_CHECK(place.local_rank >= 0, kFromEnv, "which CUDA device is this process's own? The launcher (",
                to_string(place.launcher),
                ") sets no local rank; set LOCAL_RANK or LaunchOptions::local_rank, or name the device, as in cuda:0");
    index = place.local_rank;
  }
  TORCH_CHECK(index < cuda_devices, kFromEnv, "this process is to use cuda:", index,
              own ? ", after its local rank" : "", ", but sees ", cuda_devices, " CUDA device",
              cuda_devices == 1 ? "" : "s",
              ". Start at most that many processes on this host, or set LaunchOptions::device to cpu");
  return {of_device, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index))};
}

}  // namespace dtensor::internal
