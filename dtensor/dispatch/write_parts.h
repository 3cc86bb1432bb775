// Writes to the parts of distributed tensors other than by operators, as a checkpoint's reader does.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <string_view>

namespace dtensor::internal {

// Calls `write`, which writes to memory of some or all of `tensors`; plain ones may be among them. Before, calls
// the CallHook. Afterwards, also if `write` throws, drops everything derived from it, and
// writes back to the bases of copied views. A collective call: see note_write(). `op`: the writer, for reports.
// REQUIRES: check_write() for each of them.
void write_parts(c10::ArrayRef<at::Tensor> tensors, std::string_view op, const std::function<void()>& write);

}  // namespace dtensor::internal
