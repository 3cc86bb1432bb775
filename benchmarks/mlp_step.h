// A step of a tensor-parallel MLP, forward and backward: x.mm(up).relu().mm(down), then a sum over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"

namespace dtensor::benchmarks {

struct MlpSizes {
  int64_t ranks, tokens, width, hidden;  // `hidden` of all ranks together
};
std::string name_of(const MlpSizes& s);  // "an MLP, 8 ranks, 128 tokens, 256 x 2048"

// The input, which is the same on all ranks, and the parts of the weights, one per rank of this process.
struct MlpInputs {
  at::Tensor x;
  std::vector<at::Tensor> up, down;
};
MlpInputs make_mlp_inputs(const MlpSizes& s, int64_t ranks_of_process);

// On distributed tensors. `mesh`: of one dim.
std::function<void()> our_mlp_step(const MlpInputs& in, const DeviceMesh& mesh);

}  // namespace dtensor::benchmarks
