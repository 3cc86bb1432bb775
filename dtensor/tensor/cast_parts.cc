#include "dtensor/tensor/cast_parts.h"

#include <ATen/ops/empty_like.h>

#include <memory>
#include <utility>

#include "comm/comm_work.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

SpecPtr cast_spec(const Spec& spec, c10::ScalarType dtype) {
  TensorMeta tensor = in_own_memory(spec.meta());
  tensor.dtype = dtype;
  return Spec::get(spec.mesh(), spec.placements(), tensor);
}

}  // namespace

at::Tensor cast_parts(const at::Tensor& t, c10::ScalarType dtype) {
  const DTensorMeta& meta = meta_for_read(t);
  if (meta.spec->dtype() == dtype) return t;
  RankTensors locals;
  {
    const LocalGuard guard;
    for (const at::Tensor& local : meta.locals) locals.push_back(local.to(dtype));
  }
  return make_dtensor(cast_spec(*meta.spec, dtype), std::move(locals), meta.name);
}

at::Tensor cast_arriving_parts(const at::Tensor& t, c10::ScalarType dtype) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (meta.spec->dtype() == dtype) return t;
  if (!meta.arriving || meta.arriving->done()) return cast_parts(t, dtype);
  RankTensors locals;
  {
    const LocalGuard guard;
    for (const at::Tensor& local : meta.locals) locals.push_back(at::empty_like(local, local.options().dtype(dtype)));
  }
  auto arriving = std::make_shared<CommWork>([begun = meta.arriving, from = meta.locals, to = locals] {
    begun->wait();
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  });
  return make_dtensor(cast_spec(*meta.spec, dtype), std::move(locals), meta.name, std::move(arriving));
}

}  // namespace dtensor::internal
