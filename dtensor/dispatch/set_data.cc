// Assigning a plain tensor to a distributed one.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_has_compatible_shallow_copy_type_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// set_data() calls it first. The library itself uses plain tensors while it saves and loads: inside a LocalGuard.
bool has_compatible_type(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& from) {
  if (is_dtensor(self) && !is_dtensor(from) && !c10::impl::tls_is_dispatch_key_excluded(kDTensorKey)) {
    throw_plain_in_place_of("set_data", self, from);
  }
  if (is_dtensor(from)) {
    meta_without_sync(from).storage->shared.store(true, std::memory_order_relaxed);  // now also by `self`
    keep_module_traits(self, from);  // as in Module::to() and to_empty()
    // A parameter must not be Partial, however its value was computed.
    if (is_leaf_parameter(self) && meta_without_sync(from).spec->has_partial()) {
      mutable_hints(from).laid_out_by_engine = true;
    }
  }
  return at::_ops::_has_compatible_shallow_copy_type::redispatch(keys & kBelowThatKey, self, from);
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  m.impl("_has_compatible_shallow_copy_type", &dtensor::internal::has_compatible_type);
}
