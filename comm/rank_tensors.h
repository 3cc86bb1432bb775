// Tensors of the ranks that this process owns, in the order of mesh.local_ranks().
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::internal {

using RankTensors = std::vector<at::Tensor>;              // one per owned rank
using RankPieces = std::vector<std::vector<at::Tensor>>;  // per owned rank, any number

}  // namespace dtensor::internal
