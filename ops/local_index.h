// Global indices on one rank: which of them point into its part, and where. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "placement/geometry.h"
#include "propagation/op_rule.h"

namespace dtensor {

// Does a part of a dim that is `size` long hold all of it?
bool holds_all(const Runs& runs, int64_t size);

struct LocalIndex {
  at::Tensor index;  // into the local part; elsewhere `otherwise`
  at::Tensor held;   // bool: which of the indices point into the local part
};

// `index`: global indices, each within the dim. Keeps the dtype of `index`.
LocalIndex localize(const at::Tensor& index, const Runs& runs, int64_t otherwise);

// Are all indices in [low, high)? On devices that run behind the host: asserts it there, and says yes.
bool within(const at::Tensor& index, int64_t low, int64_t high);

// Throws what the operator says to indices that are out of range: runs it on tensors of the global shape (without memory of
// that size). `stack`: the local arguments, of which the first is the tensor that is indexed.
[[noreturn]] void throw_out_of_range(const LocalCall& call, torch::jit::Stack stack);

// The rows of `t` along `dim` that lie in `runs`, as far as there are so many; a view where it can be.
at::Tensor take_runs(const at::Tensor& t, int64_t dim, const Runs& runs);

}  // namespace dtensor
