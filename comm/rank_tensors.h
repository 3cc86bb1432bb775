// Tensors of the ranks that this process owns, in the order of mesh.local_ranks().
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/container/inlined_vector.h"

namespace dtensor::internal {

using RankTensors = std::vector<at::Tensor>;        // one per owned rank
using Pieces = absl::InlinedVector<at::Tensor, 1>;  // of one rank, which most often has one
using RankPieces = std::vector<Pieces>;             // per owned rank

}  // namespace dtensor::internal
