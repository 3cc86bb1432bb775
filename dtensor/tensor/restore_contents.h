// Gives a distributed tensor the memory and the layout back that it had.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

// `before`: the tensor's DTensorMeta from before share_contents(). The tensor stays the same object.
inline void restore_contents(const at::Tensor& t, const c10::intrusive_ptr<c10::BackendMeta>& before) {
  const Spec& spec = *static_cast<const DTensorMeta&>(*before).spec;
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides({spec.sizes().data(), spec.sizes().size()},
                              {spec.strides().data(), spec.strides().size()});
  impl->set_backend_meta(before);
}

}  // namespace dtensor::internal
