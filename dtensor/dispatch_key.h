// What makes a tensor distributed: a dispatch key, which is named here and nowhere else.
//
// DispatchKey::Fake is a functionality key below autograd and above every backend, unused by LibTorch 2.11's core: a
// fallback registered there sees every operator that gets a distributed tensor, composite ones included, while autograd
// above works unchanged. If a later LibTorch claims the key, the second registration fails at start-up and this line is
// what changes.
//
//   if (is_dtensor(t)) std::cout << DTensor(t).placements();
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/DispatchKey.h>

namespace dtensor {

inline constexpr c10::DispatchKey kDTensorKey = c10::DispatchKey::Fake;

inline bool is_dtensor(const at::TensorBase& t) { return t.defined() && t.key_set().has(kDTensorKey); }

}  // namespace dtensor
