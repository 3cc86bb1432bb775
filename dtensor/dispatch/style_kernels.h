// Operators that are not composite, above autograd: those that the program calls follow the parallel styles of
// parameters (parallel/applied_style.h), and compute in their param_dtype (parallel/param_dtype.h).
#pragma once

namespace dtensor::internal {

// Registers their kernels with LibTorch, once: before a module gets its first style or param_dtype, so that programs
// without either pay nothing for them. Thread-safe.
void register_style_kernels();

}  // namespace dtensor::internal
