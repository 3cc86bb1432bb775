// The least that a distributed operator could be: a wrapper around one local tensor, whose operators look up the layout
// of the result by the pointers of the layouts that they get, run on the local tensors, and wrap the result. No
// communication, views, caches that can be full, scopes, listeners, or checks: what dispatch() is measured against.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::benchmarks {

// Wraps a CPU tensor of floats. add.Tensor, mm and relu of wrapped tensors give wrapped ones; all wrapped tensors of
// the same sizes have one layout.
at::Tensor wrap_by_hand(at::Tensor local);

}  // namespace dtensor::benchmarks
