// Kernels at kDTensorKey for operators that models call often, each with the operator's own signature: the call of an
// operator whose decision is cached takes no stack and allocates only its result (direct_call.h says when). All other
// calls take the boxed kernel, which is the reference: both compute the same, in the same layouts.
//
// tensor/typed_operators.h lists the operators.
#pragma once

namespace dtensor::internal {

// Call once per process, after register_fallback().
void register_typed_kernels();

}  // namespace dtensor::internal
