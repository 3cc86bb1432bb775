#include "dtensor/tensor/offload_parts.h"

#include <utility>

#include "dtensor/tensor/host_parts.h"
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

bool is_offloaded(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  return is_offloaded(meta.spec->mesh().world(), meta.locals);
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

void offload_gradient(const at::Tensor& leaf) {
  if (is_dtensor(leaf) && is_dtensor(leaf.grad()) && is_offloaded(leaf))
    leaf.mutable_grad() = offload_parts(leaf.grad());
}

}  // namespace dtensor::internal
