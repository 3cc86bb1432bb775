// The one place that names the dispatch key of distributed tensors.
//
// DispatchKey::Fake is a functionality key below autograd and above every backend, unused by LibTorch 2.11's core: a fallback
// registered there sees every operator that gets a distributed tensor, composite ones included, while autograd above works
// unchanged. If a later LibTorch claims the key, the second registration fails at start-up and this line is what changes.
#pragma once

#include <c10/core/DispatchKey.h>

namespace dtensor {

inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::Fake;

}  // namespace dtensor
