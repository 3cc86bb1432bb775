#include "benchmarks/loopback_gloo.h"

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace dtensor::benchmarks {

c10::intrusive_ptr<c10d::Backend> make_loopback_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace dtensor::benchmarks
