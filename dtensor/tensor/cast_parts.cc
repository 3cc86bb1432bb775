#include "dtensor/tensor/cast_parts.h"

#include <utility>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

at::Tensor cast_parts(const at::Tensor& t, c10::ScalarType dtype) {
  const DTensorMeta& meta = meta_for_read(t);
  if (meta.spec->dtype() == dtype) return t;
  TensorMeta tensor = in_own_memory(meta.spec->meta());
  tensor.dtype = dtype;
  RankTensors locals;
  {
    const LocalGuard guard;
    for (const at::Tensor& local : meta.locals) locals.push_back(local.to(dtype));
  }
  return make_dtensor(Spec::get(meta.spec->mesh(), meta.spec->placements(), tensor), std::move(locals), meta.name);
}

}  // namespace dtensor::internal
