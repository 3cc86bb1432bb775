// Kernels at kDTensorKey for operators that models call often, each with the operator's own signature: the call of an
// operator whose decision is cached takes no stack and allocates only its result, if no input moves and nothing
// observes or decides the calls of the thread. All other calls take the boxed kernel, which is the reference: both
// compute the same, in the same layouts.
//
// tensor/typed_operators.h lists the operators; typed_lists.cc and typed_optimizers.cc list those on lists of tensors.
#pragma once

namespace dtensor::internal {

// Call once per process, after register_fallback().
void register_typed_kernels();
void register_typed_lists();       // those of operators on lists: typed_lists.cc
void register_typed_optimizers();  // those of fused optimizers: typed_optimizers.cc

}  // namespace dtensor::internal
