// The second dispatch key of distributed tensors, above autograd. See dispatch_key.h for the first.
//
// DispatchKey::DeferredInit is there for libraries outside of LibTorch's core, which has no use for it. It falls
// through for every operator that has no kernel at it, so it costs nothing but where library_code.cc registers one.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

namespace dtensor {

inline constexpr c10::DispatchKey kAboveAutogradKey = c10::DispatchKey::DeferredInit;

// What a kernel at that key hands a call on to: `keys & kBelowThatKey`.
inline constexpr c10::DispatchKeySet kBelowThatKey(c10::DispatchKeySet::FULL_AFTER, kAboveAutogradKey);

}  // namespace dtensor
