// Whether calls are recorded as a graph instead of run.
#pragma once

#include <c10/core/Device.h>

namespace dtensor::internal {

// Whether the current stream of `device`, which is a GPU, captures what is put on it. Then nothing runs, and asking how
// far the stream or its events are would be an error.
bool is_capturing(c10::Device device);

}  // namespace dtensor::internal
