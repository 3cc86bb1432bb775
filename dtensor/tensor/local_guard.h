// For code that computes with local tensors.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtensor/dispatch_key.h"

namespace dtensor::internal {

// Guard that runs operators below autograd, and without the distributed keys, which a MeshScope includes: on local
// tensors.
struct LocalGuard {
  // As at::AutoDispatchBelowADInplaceOrView, and without our keys: one guard costs half of two.
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autograd_dispatch_keyset_with_ADInplaceOrView | kBothDTensorKeys};
};

}  // namespace dtensor::internal
