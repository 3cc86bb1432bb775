// For code that computes with local tensors.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtensor/dispatch_key.h"

namespace dtensor::internal {

// Guard that runs operators below autograd and below the distributed key: on local tensors.
struct LocalGuard {
  // As at::AutoDispatchBelowADInplaceOrView, and below us: one guard costs half of two.
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                           c10::DispatchKeySet(kDTensorKey)};
};

}  // namespace dtensor::internal
