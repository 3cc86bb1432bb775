#include "dtensor/meta_device.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/host_parts.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

SpecPtr with_mesh(const SpecPtr& spec, const DeviceMesh& mesh) {
  return Spec::get(mesh, spec->placements(), spec->meta());
}

// Uninitialized parts, on the ranks' devices, or in pinned host memory.
at::Tensor allocated(const SpecPtr& spec, bool in_host_memory = false) {
  RankTensors locals;
  LocalGuard guard;
  const DeviceMesh& mesh = spec->mesh();
  for (size_t i = 0; i < mesh.local_ranks().size(); ++i) {
    const Shape sizes = spec->local_shape(static_cast<int64_t>(i));
    const c10::Device device = in_host_memory ? c10::kCPU : mesh.world().device(mesh.local_ranks()[i]);
    const auto options = at::TensorOptions().dtype(spec->dtype()).device(device).pinned_memory(in_host_memory);
    locals.push_back(at::empty_strided(c10::IntArrayRef(sizes.data(), sizes.size()),
                                       dense_in_order_of(spec->strides(), sizes), options));
  }
  if (in_host_memory) offload_was_used = true;
  return make_dtensor(spec, std::move(locals));
}

// The new tensors by memory and layout of the old: tied tensors have both in common.
using Made = absl::flat_hash_map<std::pair<std::shared_ptr<LocalStorage>, SpecPtr>, at::Tensor>;

void check(const std::string& name, const at::Tensor& t) {
  TORCH_CHECK_VALUE(!t.defined() || is_dtensor(t) || !t.is_meta(), "[to_empty] '", name,
                    "' is a plain tensor on the device \"meta\", which LibTorch does not let become one with data: "
                    "make the module inside MeshScope(mesh.meta())");
}

void allocate(const at::Tensor& t, Made& made) {
  if (!is_dtensor(t) || !spec_of(t)->mesh().world().is_meta()) return;
  const DTensorMeta& meta = meta_without_sync(t);
  at::Tensor& data = made[{meta.storage, meta.spec}];
  if (!data.defined()) {
    const DeviceMesh mesh = meta.spec->mesh().with_data();
    const auto& traits = meta.storage->parameter->traits;
    const bool offload = traits && traits->offload && mesh.world().device_type() == c10::DeviceType::CUDA;
    data = allocated(with_mesh(meta.spec, mesh), offload);
  }
  const auto own_name = meta.name;
  t.mutable_grad() = at::Tensor();
  t.set_data(data);
  if (own_name) set_name(t, *own_name);
}

}  // namespace

void to_empty(torch::nn::Module& module) {
  const c10::AutoGradMode no_grad(false);
  Made made;
  for (const auto& p : module.named_parameters()) check(p.key(), p.value());
  for (const auto& b : module.named_buffers()) check(b.key(), b.value());
  for (const at::Tensor& p : module.parameters()) allocate(p, made);
  for (const at::Tensor& b : module.buffers()) allocate(b, made);
}

at::Tensor to_empty(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(is_dtensor(tensor), "[to_empty] the tensor is not distributed");
  const SpecPtr& spec = spec_of(tensor);
  if (!spec->mesh().world().is_meta()) return tensor;
  at::Tensor result = allocated(with_mesh(spec, spec->mesh().with_data()));
  result.set_requires_grad(tensor.requires_grad());
  return result;
}

at::Tensor to_meta(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(is_dtensor(tensor), "[to_meta] the tensor is not distributed");
  const SpecPtr& spec = spec_of(tensor);
  at::Tensor result = make_dtensor(with_mesh(spec, spec->mesh().meta()), {});
  if (tensor.is_leaf()) result.set_requires_grad(tensor.requires_grad());
  return result;
}

}  // namespace dtensor
