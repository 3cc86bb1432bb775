// The dispatch key that makes a tensor a sharded one. It is named only here and in dispatch.cc.
//
// TESTING_ONLY_GenericWrapper lies above autograd, so that its fallback sees the very operator that was called,
// composite ones included, as Python's __torch_function__ does; nothing in LibTorch 2.11 but its own tests uses it.
//
//   if (is_sharded(t)) std::cout << ShardedTensor(t).to_string();
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor::sharded {

inline constexpr c10::DispatchKey kShardedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

inline bool is_sharded(const at::TensorBase& t) { return t.defined() && t.key_set().has(kShardedKey); }

// Calls LibTorch's kernels on the tensor itself, to set its flags.
struct BelowSharding {
  c10::impl::ExcludeDispatchKeyGuard guard{kShardedKey};
};

}  // namespace dtensor::sharded
