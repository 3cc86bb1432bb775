#include "dtensor/tensor/replicate.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "dtensor/tensor/representation.h"
#include "plan/spec.h"
#include "propagation/op_call.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

// Does not just call t.item(): a TorchDispatchMode of Python, which gets a number for `t`, could not call it.
NumberClass class_of_wrapped(const at::Tensor& t) {
  const c10::impl::ExcludeDispatchKeyGuard without_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  return number_class(t.item());
}

}  // namespace

at::Tensor replicate_plain(const at::Tensor& t, const DeviceMesh& mesh) {
  LocalGuard guard;
  TensorMeta meta = read_meta(t);
  meta.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
  if (meta.wrapped_number) meta.number = class_of_wrapped(t);
  RankTensors locals;
  for (int64_t rank : mesh.local_ranks()) {
    const c10::Device device = mesh.world().device(rank);
    if (meta.wrapped_number) {
      locals.push_back(t);  // kernels read it from the CPU; a copy would not count as a number
    } else {
      locals.push_back(t.device() == device ? t.detach() : t.to(device));
    }
  }
  const at::Tensor result =
      make_dtensor(Spec::get(mesh, Placements(mesh.ndim(), Replicate()), meta), std::move(locals));
  meta_without_sync(result).storage->user_may_write = true;  // the user may hold `t`
  return result;
}

at::Tensor replicate_copy(const at::Tensor& t, const DeviceMesh& mesh) {
  const at::Tensor shared = replicate_plain(t, mesh);
  LocalGuard guard;
  RankTensors locals = meta_for_read(shared).locals;
  for (auto& local : locals) local = local.clone();
  return make_dtensor(spec_of(shared), std::move(locals));
}

}  // namespace dtensor::internal
