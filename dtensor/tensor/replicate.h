// Plain tensors as replicated distributed ones.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "dtensor/dispatch_key.h"
#include "mesh/device_mesh.h"
#include "plan/spec.h"

namespace dtensor::internal {

// Whether `t` was made from a number, as for Python's `x + 0.5`, and so takes part in type promotion as the number.
inline bool is_wrapped_number(const at::Tensor& t) {
  return !is_dtensor(t) && t.defined() && t.unsafeGetTensorImpl()->is_wrapped_number() && !t._is_zerotensor();
}
// Its layout, replicated. REQUIRES: is_wrapped_number(number).
SpecPtr spec_of_number(const at::Tensor& number, const DeviceMesh& mesh);

// Shares the memory of `t`, also between ranks: read-only.
at::Tensor replicate_plain(const at::Tensor& t, const DeviceMesh& mesh);
// The same with memory of its own on every rank: for tensors that users can access, gradients among them.
at::Tensor replicate_copy(const at::Tensor& t, const DeviceMesh& mesh);

}  // namespace dtensor::internal
