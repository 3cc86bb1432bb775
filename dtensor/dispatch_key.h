// The two dispatch keys that make a tensor distributed. They are named only here.
//
// DispatchKey::Fake is a functionality key below autograd and above every backend: a fallback registered there sees
// every operator that gets a distributed tensor, composite ones included, while autograd above works unchanged.
// LibTorch 2.11 to 2.15 registers nothing at it. A release that does keeps its fallback for calls without distributed
// tensors (dispatch/core_fallback.h), and describe_dispatch_key() (version.h) says so.
//
// DispatchKey::DeferredInit, above autograd, is meant for libraries outside of LibTorch's core, which does not use it.
// It falls through for operators without a kernel at it, so it costs nothing for them.
//
//   if (is_dtensor(t)) std::cout << DTensor(t).placements();
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

namespace dtensor {

namespace internal {

inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::Fake;
inline constexpr c10::DispatchKey kAboveAutogradKey = c10::DispatchKey::DeferredInit;
inline constexpr c10::DispatchKeySet kBothDTensorKeys{kDTensorKey, kAboveAutogradKey};

// A kernel at kAboveAutogradKey redispatches to `keys & kBelowThatKey`.
inline constexpr c10::DispatchKeySet kBelowThatKey(c10::DispatchKeySet::FULL_AFTER, kAboveAutogradKey);

}  // namespace internal

// Tests both keys: LibTorch's own fake tensors (since 2.13) have only the first.
inline bool is_dtensor(const at::TensorBase& t) {
  return t.defined() && t.key_set().has_all(internal::kBothDTensorKeys);
}

}  // namespace dtensor
