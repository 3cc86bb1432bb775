// Whether autocast is on, for code that runs where autocast's own kernels do not see the arguments.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

namespace dtensor::internal {

// Whether autocast is on, on this thread, for the device of `t`.
inline bool is_autocast_on(const at::Tensor& t) {
  const auto device = t.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

}  // namespace dtensor::internal
