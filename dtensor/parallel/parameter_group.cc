#include "dtensor/parallel/parameter_group.h"

#include <algorithm>
#include <utility>

#include "comm/scope.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

const LocalStorage* memory_of(const at::Tensor& t) { return meta_without_sync(t).storage.get(); }

ParameterGroup* group_of_memory(const LocalStorage& memory) {
  return memory.module_traits ? memory.module_traits->group.get() : nullptr;
}

}  // namespace

std::shared_ptr<ParameterGroup> parameter_group_of(const at::Tensor& t) {
  const auto& traits = meta_without_sync(t).storage->module_traits;
  return traits ? traits->group : nullptr;
}

Placements ParameterGroup::gathered_layout(const at::Tensor& t) const {
  Placements to = spec_of(t)->placements();
  to[mesh_dim_] = Replicate();
  return to;
}

at::Tensor ParameterGroup::gathered(const at::Tensor& t) {
  const Spec& spec = *spec_of(t);
  if (memory_of(t)->user_may_write || spec.mesh().size(mesh_dim_) == 1 || !spec.placements()[mesh_dim_].is_sharded())
    return {};
  const Placements to = gathered_layout(t);
  if (at::Tensor present = find_copy(t, to); present.defined()) return present;
  const std::vector<at::Tensor> parameters = parameters_->leaves();
  const auto base = std::find_if(parameters.begin(), parameters.end(), [&](const at::Tensor& p) {
    return is_dtensor(p) && memory_of(p) == memory_of(t) && spec_of(p)->placements()[mesh_dim_].is_sharded() &&
           can_derive(t, to, p, gathered_layout(p));
  });
  if (base == parameters.end()) return {};
  gather(*base);
  return find_copy(t, to);
}

void ParameterGroup::gather(const at::Tensor& first) {
  const DeviceMesh& mesh = spec_of(first)->mesh();
  const auto is_dropped = [&](const RememberedBytes::Entry& entry) {
    const auto memory = entry.of.lock();
    const ParameterGroup* group = memory ? group_of_memory(*memory) : nullptr;
    return group == nullptr || (group != this && !group->is_kept());
  };
  if (!is_kept_) drop_entries(gathered_of(mesh)->evict_if(is_dropped));
  std::vector<at::Tensor> parameters;
  std::vector<Layout> to;
  for (const at::Tensor& p : parameters_->leaves()) {
    if (!is_dtensor(p) || spec_of(p)->mesh() != mesh || group_of_memory(*memory_of(p)) != this) continue;
    const bool is_tied = std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& other) {
      return memory_of(other) == memory_of(p) && other.storage_offset() == p.storage_offset();
    });
    const Placements layout = gathered_layout(p);
    if (is_tied || memory_of(p)->user_may_write || !spec_of(p)->placements()[mesh_dim_].is_sharded() ||
        find_copy(p, layout).defined())
      continue;
    parameters.push_back(p);
    to.emplace_back(mesh, layout);
  }
  const CommCause cause{"gather", "parameters", common_module(parameters_->leaves()), /*implicit=*/false};
  const std::vector<at::Tensor> copies = redistribute_below_autograd(parameters, to, cause);
  for (size_t i = 0; i < parameters.size(); ++i) keep_gathered(parameters[i], copies[i]);
  if (in_backward()) drop_after_backward(mesh);
}

void ParameterGroup::drop() {
  const auto is_of_group = [&](const RememberedBytes::Entry& entry) {
    const auto memory = entry.of.lock();
    return memory && group_of_memory(*memory) == this;
  };
  for (const at::Tensor& p : parameters_->leaves()) {
    if (!is_dtensor(p) || spec_of(p)->mesh().size(mesh_dim_) == 1) continue;
    return drop_entries(gathered_of(spec_of(p)->mesh())->evict_if(is_of_group));  // all are on one mesh
  }
}

}  // namespace dtensor::internal
