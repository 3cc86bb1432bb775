// For code that computes with local tensors.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtensor/dispatch_key.h"

namespace dtensor::internal {

// Guard that runs operators below autograd and below the distributed key: on local tensors.
struct LocalGuard {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_us{kDTensorKey};
};

}  // namespace dtensor::internal
