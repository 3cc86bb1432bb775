#include "dtensor/tensor/host_parts.h"

#include <ATen/ops/empty_like.h>

#include "dtensor/tensor/local_guard.h"

namespace dtensor::internal {

std::atomic<bool> offload_was_used = false;

bool is_offloaded(const World& world, at::TensorList parts) {
  return is_offload_used() && !parts.empty() && world.device_type() == c10::DeviceType::CUDA && parts[0].is_cpu();
}

RankTensors parts_in_host_memory(const RankTensors& parts) {
  const LocalGuard guard;
  offload_was_used = true;
  RankTensors copies;
  for (const at::Tensor& part : parts) {
    const auto options = part.options().device(at::kCPU).pinned_memory(true);
    copies.push_back(at::empty_like(part, options, at::MemoryFormat::Preserve));
    copies.back().copy_(part);
  }
  return copies;
}

RankTensors parts_on_gpus(const World& world, const RankTensors& parts, const std::vector<int64_t>& ranks) {
  const LocalGuard guard;
  RankTensors copies;
  for (size_t i = 0; i < parts.size(); ++i) copies.push_back(parts[i].to(world.device(ranks[i])));
  return copies;
}

}  // namespace dtensor::internal
