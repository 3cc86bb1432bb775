// Finds computations with parameters whose module has hooks that never ran (hook_watch.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

// Copies the hook watches of `from` to `to`, if `to` has none. REQUIRES: is_dtensor(to).
void keep_hook_watches(const at::Tensor& from, const at::Tensor& to);

struct OpInfo;
struct Inputs;

// Error (c10::Error): `info` computes with a marked tensor and another one, and the hooks have not run. Not in
// backward. An operator that reads only parameters, writes to them, takes lists of them, or is pointwise on tensors of
// one shape (an optimizer, an average, a distance from former values) does not count as forward.
void check_hooks_ran(const OpInfo& info, const Inputs& in);

}  // namespace dtensor::internal
