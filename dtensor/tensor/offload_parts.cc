#include "dtensor/tensor/offload_parts.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

at::Tensor with_parts(const at::Tensor& t, RankTensors parts) {
  const DTensorMeta& meta = meta_without_sync(t);
  const Spec& spec = *meta.spec;
  return make_dtensor(Spec::get(spec.mesh(), spec.placements(), in_own_memory(spec.meta())), std::move(parts),
                      meta.name);
}

}  // namespace

bool is_offloaded(const World& world, const RankTensors& parts) {
  return !parts.empty() && world.device_type() == c10::DeviceType::CUDA && parts[0].is_cpu();
}

bool is_offloaded(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  return is_offloaded(meta.spec->mesh().world(), meta.locals);
}

RankTensors parts_in_host_memory(const RankTensors& parts) {
  const LocalGuard guard;
  RankTensors copies;
  for (const at::Tensor& part : parts) {
    const auto options = part.options().device(at::kCPU).pinned_memory(true);
    copies.push_back(at::empty_like(part, options, at::MemoryFormat::Contiguous));
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

at::Tensor offload_parts(const at::Tensor& t) {
  const DTensorMeta& meta = meta_for_read(t);
  const bool is_on_gpus = !meta.locals.empty() && meta.locals[0].is_cuda();
  return is_on_gpus ? with_parts(t, parts_in_host_memory(meta.locals)) : t;
}

at::Tensor load_parts(const at::Tensor& t) {
  if (!is_offloaded(t)) return t;
  const DTensorMeta& meta = meta_for_read(t);
  const DeviceMesh& mesh = meta.spec->mesh();
  return with_parts(t, parts_on_gpus(mesh.world(), meta.locals, mesh.local_ranks()));
}

}  // namespace dtensor::internal
