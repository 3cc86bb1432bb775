#include "dtensor/dispatch/internal/on_one_device.h"

#include <c10/util/Exception.h>

#include "dtensor/tensor/host_parts.h"

namespace dtensor::internal {

std::vector<RankTensors> on_one_device(const OpInfo& info, const Inputs& in, std::vector<RankTensors> locals) {
  const World& world = in.mesh.world();
  if (world.device_type() != c10::DeviceType::CUDA) return locals;
  const auto may_move = [](const RankTensors& parts) {
    return !parts.empty() && parts[0].defined() && !parts[0].unsafeGetTensorImpl()->is_wrapped_number();
  };
  bool in_host_memory = false, on_gpus = false, writes_host = false, writes_gpus = false;
  for (size_t k = 0; k < locals.size(); ++k) {
    if (!may_move(locals[k])) continue;
    const bool is_host = locals[k][0].is_cpu(), is_written = info.args[in.arg_of[k]].written;
    (is_host ? in_host_memory : on_gpus) = true;
    if (is_written) (is_host ? writes_host : writes_gpus) = true;
  }
  if (!in_host_memory || !on_gpus) return locals;
  TORCH_CHECK(
      !writes_host || !writes_gpus, info.name,
      ": writes to tensors in host memory, as of fully_shard() with offload, and to others on GPUs: call it for "
      "them one after the other");
  for (RankTensors& parts : locals) {
    if (!may_move(parts) || parts[0].is_cpu() == writes_host) continue;
    parts = writes_host ? parts_in_host_memory(parts) : parts_on_gpus(world, parts, in.mesh.local_ranks());
  }
  return locals;
}

}  // namespace dtensor::internal
