// Calls that reach the fallback but are not an ordinary operator on distributed tensors.
#pragma once

#include <ATen/core/stack.h>

#include "dtensor/dispatch/op_info.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

// No argument is distributed. Inside a MeshScope, or in the code of a composite operator with distributed arguments
// (composite_op_scope.h), a factory makes a replicated tensor on the scope's (the arguments') mesh (random ones draw
// once, so that all ranks agree); everything else runs as without this library. torch::empty() makes a distributed
// tensor; at::empty() stays plain, as do both in the code of operators, this library's included, which fill memory
// through a pointer.
void dispatch_plain(const OpInfo& info, torch::jit::Stack& stack);

// Writes to a plain tensor with distributed arguments, which are gathered. Autograd's formulas and composite operators
// do that to tensors that they have just made from options (zeros(...).scatter_(...)): these become distributed and
// replicated, and so do the results computed from them. In an ImplicitReplication scope the tensor stays plain, and
// also where only constants from factories in a MeshScope are written to it (LibTorch's code for packed sequences
// inverts a plain permutation by scatter_(0, permutation, arange(n))). Elsewhere an error.
void write_to_plain(const OpInfo& info, const DeviceMesh& mesh, torch::jit::Stack& stack);

}  // namespace dtensor::internal
