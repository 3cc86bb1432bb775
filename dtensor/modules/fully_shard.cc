#include "dtensor/fully_shard.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/dispatch/style_kernels.h"
#include "dtensor/distribute_module.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/modules/module_layouts.h"
#include "dtensor/parallel/mesh_dim_option.h"
#include "dtensor/parallel/mixed_precision_option.h"
#include "dtensor/parallel/module_contents.h"
#include "dtensor/parallel/parameter_group.h"
#include "dtensor/redistribute.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/offload_parts.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

// A parameter that gets a group, and its layout there.
struct ToShard {
  std::string name;
  at::Tensor tensor;
  Placements to;
};

// Over which mesh dim parameters are sharded, and by which of their own.
struct Sharded {
  int64_t mesh_dim = 0, dim = 0;
};

// The layout of a parameter in its group.
Placements layout_in_group(const std::string& name, const at::Tensor& t, const DeviceMesh& mesh, Sharded how) {
  const int64_t dim = how.mesh_dim, own_dim = std::min(how.dim, t.dim() - 1);
  Placements to(mesh.ndim(), Replicate());
  if (is_dtensor(t)) {
    const Spec& spec = *spec_of(t);
    const DeviceMesh own = spec.mesh().with_data();
    TORCH_CHECK_VALUE(own == mesh.with_data() || (t.is_meta() && spec.is_replicated()), "[fully_shard] '", name,
                      "' is ", spec.to_string(), " on another mesh than ", mesh.to_string());
    if (own == mesh.with_data()) to = spec.placements();
    TORCH_CHECK_VALUE(to[dim].is_replicate(), "[fully_shard] '", name, "' is ", spec.to_string(),
                      ", which is not replicated over the mesh dim '", mesh.names()[dim],
                      "': leave that to fully_shard()");
  }
  if (t.dim() == 0) return to;
  int64_t pieces = 1;  // of its dim, on later mesh dims
  for (int64_t m = dim + 1; m < mesh.ndim(); ++m) {
    TORCH_CHECK_VALUE(!to[m].is_strided_shard() || to[m].dim() != own_dim, "[fully_shard] '", name, "' is ",
                      spec_of(t)->to_string(), ": a dim that has a StridedShard cannot be sharded once more");
    if (to[m].is_sharded_on(own_dim)) pieces *= mesh.size(m);
  }
  to[dim] = pieces == 1 ? Shard(own_dim) : StridedShard(own_dim, pieces);
  return to;
}

bool is_not_distributed(const at::Tensor& t) { return t.defined() && !is_dtensor(t); }

bool has_plain_tensors(const torch::nn::Module& module) {
  const auto parameters = module.parameters(), buffers = module.buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_not_distributed) ||
         std::any_of(buffers.begin(), buffers.end(), is_not_distributed);
}

std::string quoted_name(const at::Tensor& t) {
  const auto name = is_dtensor(t) ? meta_without_sync(t).name : nullptr;
  return name ? absl::StrCat("'", *name, "'") : "a tensor without a name";
}

// The parameters without a group. Error: a group has parameters in `module` and outside of it.
std::vector<ToShard> parameters_without_group(const torch::nn::Module& module, const DeviceMesh& mesh, Sharded how) {
  std::vector<ToShard> result;
  absl::flat_hash_set<const c10::TensorImpl*> own;
  for (const at::Tensor& p : module.parameters()) own.insert(p.unsafeGetTensorImpl());
  for (const auto& p : module.named_parameters()) {
    const at::Tensor& t = p.value();
    if (!t.defined()) continue;
    const auto group = is_dtensor(t) ? leaf_group_of(t) : nullptr;
    if (!group) {
      result.push_back({p.key(), t, layout_in_group(p.key(), t, mesh, how)});
      continue;
    }
    const auto leaves = group->leaves();
    const auto outside = std::find_if(leaves.begin(), leaves.end(), [&](const at::Tensor& leaf) {
      return !own.contains(leaf.unsafeGetTensorImpl());
    });
    TORCH_CHECK_VALUE(outside == leaves.end(), "[fully_shard] '", p.key(), "' of ", module.name(),
                      " is in one group with ", quoted_name(*outside),
                      ", which is no parameter of that module: call fully_shard() for submodules first, then for the "
                      "modules that contain them; modules that share a parameter are sharded in one call, for a module "
                      "that contains them");
  }
  return result;
}

// Error: all parameters of `module` that have dims are in one group already, and nothing else is left to distribute.
// (Where they are in several groups, `module` is a container of modules with groups.)
void check_has_not_one_group(const torch::nn::Module& module) {
  if (has_plain_tensors(module)) return;
  std::shared_ptr<const LeafGroup> common;
  for (const at::Tensor& t : module.parameters()) {
    if (!t.defined() || t.dim() == 0) continue;
    const auto group = leaf_group_of(t);
    if (!group || (common && group != common)) return;
    common = group;
  }
  TORCH_CHECK_VALUE(!common, "[fully_shard] all parameters of ", module.name(),
                    " are in one group already, so that none is left for another one: call fully_shard() once for each "
                    "module that should have a group");
}

// New contents by memory, layout and offset of the old: tied parameters have all three in common.
using Moved = absl::flat_hash_map<std::tuple<std::shared_ptr<LocalStorage>, SpecPtr, int64_t>, at::Tensor>;

// Redistributes a distributed parameter in place, with its gradient.
void change_layout(const ToShard& p, const DeviceMesh& mesh, Moved& moved) {
  const c10::AutoGradMode no_grad(false);
  const DTensorMeta& meta = meta_without_sync(p.tensor);
  const bool is_on_mesh = meta.spec->mesh().with_data() == mesh.with_data();  // else it has no data yet
  at::Tensor& data = moved[{meta.storage, meta.spec, p.tensor.storage_offset()}];
  const CommCause cause = explicit_cause("fully_shard");
  if (!data.defined()) {
    data = is_on_mesh ? redistribute_below_autograd(p.tensor.detach(), p.to, cause)
                      : distribute_tensor(p.tensor.detach(), mesh, p.to);
  }
  const at::Tensor grad = p.tensor.grad();
  p.tensor.set_data(data);
  if (!grad.defined()) return;
  p.tensor.mutable_grad() = is_on_mesh && is_dtensor(grad) ? redistribute_below_autograd(grad, p.to, cause)
                                                           : distribute_tensor(grad.detach(), mesh, p.to);
}

void lay_out(torch::nn::Module& module, const std::vector<ToShard>& parameters, const DeviceMesh& mesh) {
  Moved moved;
  for (const ToShard& p : parameters) {
    if (is_dtensor(p.tensor)) change_layout(p, mesh, moved);
  }
  if (!has_plain_tensors(module)) return;
  distribute_rest_of_module(module, mesh, [&](const std::string& path, torch::nn::Module&, const DeviceMesh&) {
    if (!path.empty()) return;  // `parameters` have their paths in the whole module
    for (const ToShard& p : parameters) {
      if (is_not_distributed(p.tensor)) shard_parameter(module, p.name, mesh, p.to);
    }
  });
}

// Moves the parts of the parameters and of their gradients to host memory.
void offload(const std::vector<at::Tensor>& parameters) {
  const c10::AutoGradMode no_grad(false);
  Moved moved;
  for (const at::Tensor& p : parameters) {
    const DTensorMeta& meta = meta_without_sync(p);
    at::Tensor& data = moved[{meta.storage, meta.spec, p.storage_offset()}];
    if (!data.defined()) data = offload_parts(p.detach());
    p.set_data(data);
    offload_gradient(p);
  }
}

using Names = absl::flat_hash_map<const c10::TensorImpl*, std::shared_ptr<const std::string>>;

std::vector<at::Tensor> distributed_tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> result = module.parameters();
  for (const at::Tensor& b : module.buffers()) result.push_back(b);
  std::erase_if(result, [](const at::Tensor& t) { return !is_dtensor(t); });
  return result;
}

Names names_in(const torch::nn::Module& module) {
  Names names;
  for (const at::Tensor& t : distributed_tensors_of(module)) names[t.unsafeGetTensorImpl()] = meta_without_sync(t).name;
  return names;
}

// Names parameters and buffers by their paths in `module`, except those that were named as part of a larger module.
void name_tensors(torch::nn::Module& module, const Names& before) {
  name_parameters(module);
  for (const at::Tensor& t : distributed_tensors_of(module)) {
    const auto known = before.find(t.unsafeGetTensorImpl());
    const auto name = meta_without_sync(t).name;
    if (known == before.end() || !known->second || !name) continue;
    if (absl::EndsWith(*known->second, absl::StrCat(".", *name))) set_name(t, *known->second);
  }
}

// The groups that `module` has parameters of are gathered ahead, in the order in which they were made. Those whose
// module contains other groups stay gathered, and are used between these: they begin no gather, and of them only the
// last one, of `module` itself, is gathered ahead.
void gather_in_order(const torch::nn::Module& module) {
  std::map<int64_t, std::shared_ptr<ParameterGroup>> groups;
  for (const at::Tensor& p : module.parameters()) {
    if (const auto group = is_dtensor(p) ? parameter_group_of(p) : nullptr) groups[group->number()] = group;
  }
  std::vector<std::weak_ptr<ParameterGroup>> in_order;
  for (const auto& [number, group] : groups) {
    if (!group->contains_groups() || number == groups.rbegin()->first) in_order.push_back(group);
  }
  const auto order = std::make_shared<GatherOrder>(std::move(in_order));
  for (const auto& [number, group] : groups) group->set_order(group->contains_groups() ? nullptr : order);
}

}  // namespace

void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  const int64_t dim = mesh_dim_option(mesh, options.mesh_dim, "fully_shard");
  check_dtypes(options.mixed_precision, "fully_shard");
  TORCH_CHECK_VALUE(options.dim >= 0, "[fully_shard] dim is ", options.dim, "; it must be at least 0");
  if (options.mixed_precision.param_dtype) register_style_kernels();
  const auto parameters = parameters_without_group(module, mesh, {dim, options.dim});
  for (const ToShard& p : parameters) {
    if (is_dtensor(p.tensor) && gives_any(mixed_precision_of(p.tensor)))
      check_agrees(options.mixed_precision, p.name, p.tensor, "fully_shard");
  }
  const bool contains_groups = parameters.size() < module.parameters().size();
  check_has_not_one_group(module);
  const Names names = names_in(module);
  const ModuleContents before(module);
  std::vector<at::Tensor> members;
  for (const ToShard& p : parameters) {
    if (p.tensor.dim() > 0) members.push_back(p.tensor);
  }
  try {
    lay_out(module, parameters, mesh);
    if (options.offload) offload(members);
  } catch (...) {
    before.restore();
    throw;
  }
  name_tensors(module, names);
  const auto leaves = std::make_shared<const LeafGroup>(members, options.mixed_precision.reduce_dtype);
  const auto group = std::make_shared<ParameterGroup>(leaves, dim, contains_groups, options.reshard_after_forward,
                                                      options.mixed_precision.param_dtype);
  for (const at::Tensor& p : members) {
    change_module_traits(p, [&](ModuleTraits& traits) {
      traits.group = group;
      traits.leaves = leaves;
      traits.offload = options.offload;
      traits.mixed_precision = options.mixed_precision;
      traits.cast_of = std::nullopt;
    });
  }
  if (options.prefetch) gather_in_order(module);
}

void reshard(torch::nn::Module& module) {
  for (const at::Tensor& p : module.parameters()) {
    const auto group = is_dtensor(p) ? parameter_group_of(p) : nullptr;
    if (group) group->drop();
  }
}

}  // namespace dtensor
