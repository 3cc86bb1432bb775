#include "dtensor/parallel/parameter_group.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <utility>

#include "comm/scope.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/cast_parts.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/offload_parts.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

const LocalStorage* memory_of(const at::Tensor& t) { return meta_without_sync(t).storage.get(); }

ParameterGroup* group_of_memory(const LocalStorage& memory) {
  return memory.parameter->traits ? memory.parameter->traits->group.get() : nullptr;
}

// Null: it is none.
const CastOf* cast_of(const at::Tensor& t) {
  const auto& traits = meta_without_sync(t).storage->parameter->traits;
  return traits && traits->cast_of ? &*traits->cast_of : nullptr;
}

std::atomic<int64_t> next_number = 0;  // of a group

}  // namespace

std::shared_ptr<ParameterGroup> parameter_group_of(const at::Tensor& t) {
  const auto& traits = meta_without_sync(t).storage->parameter->traits;
  return traits ? traits->group : nullptr;
}

ParameterGroup::ParameterGroup(std::shared_ptr<const LeafGroup> parameters, int64_t mesh_dim, bool contains_groups,
                               bool reshard_after_forward, std::optional<c10::ScalarType> param_dtype)
    : number_(next_number++),
      parameters_(std::move(parameters)),
      mesh_dim_(mesh_dim),
      contains_groups_(contains_groups),
      is_kept_(contains_groups || !reshard_after_forward),
      param_dtype_(param_dtype) {}

Placements ParameterGroup::gathered_layout(const at::Tensor& t) const {
  Placements to = spec_of(t)->placements();
  to[mesh_dim_] = Replicate();
  return to;
}

c10::ScalarType ParameterGroup::gathered_dtype(c10::ScalarType dtype) const {
  return param_dtype_ && c10::isFloatingType(dtype) ? *param_dtype_ : dtype;
}

at::Tensor ParameterGroup::in_parameter(const at::Tensor& t) const {
  const DTensorMeta& meta = meta_without_sync(t);
  const CastOf* cast = cast_of(t);
  const auto memory = cast == nullptr ? meta.storage : cast->memory.lock();
  if (cast != nullptr) {
    const bool is_as_cast = writes_of(*meta.storage) == 0 && !meta.storage->user_may_write;
    if (!is_as_cast || !memory || writes_of(*memory) != cast->writes) return {};
  }
  const auto dtype = gathered_dtype(meta.spec->dtype());
  if (cast == nullptr && dtype == meta.spec->dtype()) return t;
  TensorMeta tensor = meta.spec->meta();
  tensor.dtype = dtype;
  const int64_t offset = t.storage_offset() + (cast == nullptr ? 0 : cast->offset);
  const at::Tensor handle =
      make_view(Spec::get(meta.spec->mesh(), meta.spec->placements(), tensor), meta.locals, t, offset, memory);
  mutable_hints(handle).name = cast == nullptr ? meta.name : cast->name;
  return handle;
}

at::Tensor ParameterGroup::find_or_gather(const at::Tensor& own, const Placements& to) {
  at::Tensor present;
  try {
    present = find_copy(own, to);
  } catch (c10::Error& e) {  // of the gather that began ahead
    e.add_context(c10::str("while gathering the parameters of ", module()));
    throw;
  }
  const bool is_there = present.defined();
  const std::vector<at::Tensor> parameters = parameters_->leaves();
  const auto is_base = [&](const at::Tensor& p) {
    return is_dtensor(p) && memory_of(p) == memory_of(own) && spec_of(p)->placements()[mesh_dim_].is_sharded() &&
           can_derive(own, to, in_parameter(p), gathered_layout(p));
  };
  if (!is_there && std::none_of(parameters.begin(), parameters.end(), is_base)) return {};
  const bool begins = order_ != nullptr && order_->begins(*this);
  const auto next = order_ != nullptr && (begins || !is_there) ? order_->next_of(*this) : nullptr;
  const DeviceMesh& mesh = spec_of(own)->mesh();
  if (begins || !is_there) drop_others(mesh, next.get());
  if (!is_there) {
    gather(mesh, /*ahead=*/false);
    present = find_copy(own, to);
  }
  if (next) next->gather_ahead();
  return present;
}

std::string ParameterGroup::module() const {
  const std::string path = common_module(parameters_->leaves());
  return path.empty() ? "the model" : "'" + path + "'";
}

bool ParameterGroup::is_gathered_on(const DeviceMesh& mesh, const at::Tensor& t) const {
  return mesh.size(mesh_dim_) > 1 || is_offloaded(t);
}

at::Tensor ParameterGroup::gathered(const at::Tensor& t) {
  const at::Tensor copy = find_gathered(t);
  return copy.defined() || !is_offloaded(t) ? copy : load_parts(t);
}

at::Tensor ParameterGroup::find_gathered(const at::Tensor& t) {
  const Spec& spec = *spec_of(t);
  if (!is_gathered_on(spec.mesh(), t) || !spec.placements()[mesh_dim_].is_sharded()) return {};
  const at::Tensor own = in_parameter(t);
  if (!own.defined() || memory_of(own)->user_may_write) return {};
  at::Tensor present;
  try {
    present = find_or_gather(own, gathered_layout(own));
  } catch (...) {
    drop();
    throw;
  }
  if (!present.defined()) return {};
  at::Tensor result = cast_parts(present, spec.dtype());
  mutable_hints(result).name = meta_without_sync(own).name;  // for reports of what the call communicates
  return result;
}

void ParameterGroup::add_cast(const at::Tensor& from, const at::Tensor& to) {
  const DTensorMeta &source = meta_without_sync(from), &result = meta_without_sync(to);
  const CastOf* before = cast_of(from);
  const auto is_gathered = before == nullptr ? result.spec->dtype() : source.spec->dtype();
  if (!param_dtype_ || is_gathered != *param_dtype_ || !c10::isFloatingType(source.spec->dtype()) ||
      !c10::isFloatingType(result.spec->dtype()))
    return;
  if (result.storage == source.storage || result.storage->parameter->traits ||
      result.spec->mesh() != source.spec->mesh() || result.spec->placements() != source.spec->placements() ||
      to.strides() != from.strides())
    return;
  const at::Tensor own = in_parameter(from);
  if (!own.defined()) return;
  const DTensorMeta& parameter = meta_without_sync(own);
  change_module_traits(to, [&](ModuleTraits& traits) {
    traits.group = parameter_group_of(from);
    traits.cast_of = CastOf{parameter.storage, writes_of(*parameter.storage),
                            own.storage_offset() - to.storage_offset(), parameter.name};
  });
}

void ParameterGroup::drop_others(const DeviceMesh& mesh, const ParameterGroup* next) {
  if (is_kept_) return;
  const auto is_dropped = [&](const RememberedBytes::Entry& entry) {
    const auto memory = entry.of.lock();
    const ParameterGroup* group = memory ? group_of_memory(*memory) : nullptr;
    return group == nullptr || (group != this && group != next && !group->is_kept());
  };
  drop_entries(gathered_of(mesh)->evict_if(is_dropped));
}

void ParameterGroup::gather_ahead() {
  for (const at::Tensor& p : parameters_->leaves()) {
    if (!is_dtensor(p) || group_of_memory(*memory_of(p)) != this) continue;
    const DeviceMesh mesh = spec_of(p)->mesh();  // of all
    if (is_gathered_on(mesh, p)) gather(mesh, /*ahead=*/true);
    return;
  }
}

void ParameterGroup::gather(const DeviceMesh& mesh, bool ahead) {
  std::vector<at::Tensor> parameters, parts;
  std::vector<Layout> to;
  for (const at::Tensor& p : parameters_->leaves()) {
    if (!is_dtensor(p) || spec_of(p)->mesh() != mesh || group_of_memory(*memory_of(p)) != this) continue;
    const bool is_tied = std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& other) {
      return memory_of(other) == memory_of(p) && other.storage_offset() == p.storage_offset();
    });
    const Placements layout = gathered_layout(p);
    if (is_tied || memory_of(p)->user_may_write || !spec_of(p)->placements()[mesh_dim_].is_sharded()) continue;
    const at::Tensor own = in_parameter(p);
    if (!own.defined() || has_copy(own, layout)) continue;
    parameters.push_back(own);
    parts.push_back(cast_parts(load_parts(p), spec_of(own)->dtype()));
    to.emplace_back(mesh, layout);
  }
  if (parts.empty()) return;
  const CommCause cause{"gather", "parameters", common_module(parameters_->leaves()), /*implicit=*/false};
  std::vector<at::Tensor> copies;
  try {
    copies = redistribute_below_autograd(parts, to, cause, {.async_op = ahead});
  } catch (c10::Error& e) {
    e.add_context(c10::str("while gathering the parameters of ", module()));
    throw;
  }
  for (size_t i = 0; i < parameters.size(); ++i) keep_gathered(parameters[i], copies[i]);
  if (in_backward()) drop_after_backward(mesh);
}

void ParameterGroup::drop() {
  const auto is_of_group = [&](const RememberedBytes::Entry& entry) {
    const auto memory = entry.of.lock();
    return memory && group_of_memory(*memory) == this;
  };
  for (const at::Tensor& p : parameters_->leaves()) {
    if (!is_dtensor(p) || !is_gathered_on(spec_of(p)->mesh(), p)) continue;
    return drop_entries(gathered_of(spec_of(p)->mesh())->evict_if(is_of_group));  // all are on one mesh
  }
}

bool GatherOrder::begins(const ParameterGroup& group) {
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  if (used_ == &group && backward_ == backward) return false;
  used_ = &group;
  backward_ = backward;
  return true;
}

std::shared_ptr<ParameterGroup> GatherOrder::next_of(const ParameterGroup& group) const {
  const auto own =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& other) { return other.lock().get() == &group; });
  if (own == groups_.end()) return nullptr;
  if (backward_) return own == groups_.begin() ? nullptr : std::prev(own)->lock();
  return std::next(own) == groups_.end() ? nullptr : std::next(own)->lock();
}

}  // namespace dtensor::internal
