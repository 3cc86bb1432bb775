// A set of mesh dims, for steps that work along several at once.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>

namespace dtensor {

// Some dims of a mesh, ascending: those along which ranks communicate.
using MeshDims = c10::SmallVector<int64_t, 3>;

}  // namespace dtensor
