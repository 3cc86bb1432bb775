// Parts in host memory of ranks on GPUs, as fully_shard() keeps them with `offload`; see offload_parts.h for tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/rank_tensors.h"
#include "mesh/world.h"

namespace dtensor::internal {

// Whether this process ever had such parts. Hidden, so that asking takes two instructions.
[[gnu::visibility("hidden")]] extern std::atomic<bool> offload_was_used;
inline bool is_offload_used() { return offload_was_used.load(std::memory_order_relaxed); }

// Whether the parts are in host memory although the ranks are on GPUs.
bool is_offloaded(const World& world, at::TensorList parts);

// Copies in pinned host memory. Waits for the GPUs.
RankTensors parts_in_host_memory(const RankTensors& parts);
// Copies on the GPUs of `ranks`, one part each. Waits until the parts are read.
RankTensors parts_on_gpus(const World& world, const RankTensors& parts, const std::vector<int64_t>& ranks);

}  // namespace dtensor::internal
