// Parts in host memory of ranks on GPUs: what fully_shard() keeps there with `offload`. Operators on such tensors alone
// compute on the CPU, and what they and their communication give stays in host memory; below autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/rank_tensors.h"
#include "mesh/world.h"

namespace dtensor::internal {

// Whether the parts are in host memory although the ranks are on GPUs.
bool is_offloaded(const World& world, const RankTensors& parts);
// REQUIRES: is_dtensor(t).
bool is_offloaded(const at::Tensor& t);

// Copies in pinned host memory. Waits for the GPUs.
RankTensors parts_in_host_memory(const RankTensors& parts);
// Copies on the GPUs of `ranks`, one part each. Waits until the parts are read.
RankTensors parts_on_gpus(const World& world, const RankTensors& parts, const std::vector<int64_t>& ranks);

// `t` with copies of its parts in host memory, or on its ranks' GPUs; `t` itself if they are there, and where the ranks
// are on CPUs. REQUIRES: is_dtensor(t).
at::Tensor offload_parts(const at::Tensor& t);
at::Tensor load_parts(const at::Tensor& t);

}  // namespace dtensor::internal
