// Synchronises GPU work between threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

// Waits until the device of `t` has finished all its work: each thread has current streams of its own. Does nothing for
// tensors on the CPU.
void wait_for_device(const at::Tensor& t);

}  // namespace dtensor::internal
