// Work on GPUs that one thread has begun and another goes on with. Internal.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// Waits until the device of `t` has done all that it was given: each thread has current streams of its own. Nothing for
// tensors on the CPU.
void wait_for_device(const at::Tensor& t);

}  // namespace dtensor
