// Writing to the parts of distributed tensors by other means than operators, as a checkpoint's reader does. For the
// folders above.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <string_view>

namespace dtensor {

// Calls `write`, which writes to memory of some or all of `tensors`; plain ones may be among them. What is late and
// computed of that is computed before, nothing that was derived from it is remembered, also where `write` throws, and
// tensors that copied views are of get what was written. A collective call: see note_write(). `op`: who writes, for
// reports. REQUIRES: check_can_carry_back() for each of them.
void write_parts(c10::ArrayRef<at::Tensor> tensors, std::string_view op, const std::function<void()>& write);

}  // namespace dtensor
