// What saving and loading of modules and of optimizers share. Internal.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

// The value of a tensor, distributed or plain, as a plain one on the CPU that owns just its memory. Error
// (NotImplementedError): this process lacks values.
at::Tensor whole_value(const at::Tensor& t);

// Writes `value` (plain or distributed, of equal shape, any dtype and device) to the memory of `target`; layout and
// dtype stay. Each rank takes its part of its own `value`: no communication for plain ones.
void copy_into(const at::Tensor& target, const at::Tensor& value);

}  // namespace dtensor
