// The memory that tensors take on one device, as its allocator sees it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace dtensor::benchmarks {

// On the CPU it replaces LibTorch's allocator by one that counts.
class TensorMemory {
 public:
  explicit TensorMemory(c10::Device device);
  // From now on: on the CPU what is allocated, on a GPU what is more than now. A backend's thread frees its last
  // buffers some time later.
  void begin();
  void reset_peak();
  int64_t peak();  // bytes

 private:
  const c10::Device device_;
  int64_t before_ = 0;  // on a GPU
};

}  // namespace dtensor::benchmarks
