#include "dtensor/tensor/replicate.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "dtensor/tensor/representation.h"
#include "plan/spec.h"
#include "propagation/op_call.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

// Does not just call t.item(), which takes longer: a TorchDispatchMode of Python, which gets a number for `t`, could
// not call it.
NumberClass class_of_wrapped(const at::Tensor& t) {
  const bool has_host_memory = t.is_cpu() && t.has_storage() && !t.key_set().has(c10::DispatchKey::Python);
  if (has_host_memory && t.scalar_type() == at::kDouble) return number_class(*t.const_data_ptr<double>());
  if (has_host_memory && t.scalar_type() == at::kLong) return number_class(*t.const_data_ptr<int64_t>());
  const LocalGuard guard;
  const c10::impl::ExcludeDispatchKeyGuard without_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  return number_class(t.item());
}

Placements replicated(const DeviceMesh& mesh) { return Placements(mesh.ndim(), Replicate()); }

}  // namespace

SpecPtr spec_of_number(const at::Tensor& number, const DeviceMesh& mesh) {
  TensorMeta meta = read_meta(number);
  meta.wrapped_number = true;
  meta.number = class_of_wrapped(number);
  return Spec::get(mesh, replicated(mesh), meta);
}

at::Tensor replicate_plain(const at::Tensor& plain, const DeviceMesh& mesh) {
  LocalGuard guard;
  // The tangent of an argument that has none is zeros without memory, which nothing may write to.
  const at::Tensor t = plain._is_zerotensor() ? at::zeros({}, plain.options()).expand(plain.sizes()) : plain;
  const bool is_number = is_wrapped_number(t);
  RankTensors locals;
  for (int64_t rank : mesh.local_ranks()) {
    const c10::Device device = mesh.world().device(rank);
    if (is_number) {
      locals.push_back(t);  // kernels read it from the CPU; a copy would not count as a number
    } else {
      locals.push_back(t.device() == device ? t.detach() : t.to(device));
    }
  }
  SpecPtr spec = is_number ? spec_of_number(t, mesh) : Spec::get(mesh, replicated(mesh), read_meta(t));
  const at::Tensor result = make_alias(std::move(spec), std::move(locals));
  meta_without_sync(result).storage->user_may_write = true;  // the user may hold `plain`
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
