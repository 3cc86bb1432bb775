// Operators that are not composite, above autograd: those that the program calls follow the parallel styles of
// parameters (parallel/applied_style.h).
#pragma once

namespace dtensor::internal {

// Registers their kernels with LibTorch, once: before a module gets its first style, so that programs without styles
// pay nothing for them. Thread-safe.
void register_style_kernels();

}  // namespace dtensor::internal
