#include "dtensor/fully_shard.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "dtensor/distribute_module.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/parallel/module_contents.h"
#include "dtensor/parallel/parameter_group.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_traits.h"
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

int64_t checked_mesh_dim(const DeviceMesh& mesh, const std::string& name) {
  TORCH_CHECK_VALUE(mesh.defined(), "[fully_shard] no mesh: give a DeviceMesh(world, shape)");
  if (!name.empty()) {
    const auto& names = mesh.names();
    const auto found = std::find(names.begin(), names.end(), name);
    TORCH_CHECK_VALUE(found != names.end(), "[fully_shard] mesh_dim '", name, "' is no dim of ", mesh.to_string());
    return found - names.begin();
  }
  TORCH_CHECK_VALUE(mesh.ndim() == 1, "[fully_shard] ", mesh.to_string(),
                    " has several dims: name the one that parameters are sharded over, {.mesh_dim = \"",
                    mesh.names().front(), "\"}");
  return 0;
}

// The layout of a parameter in its group.
Placements layout_in_group(const std::string& name, const at::Tensor& t, const DeviceMesh& mesh, int64_t dim) {
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
  int64_t pieces = 1;  // of the first dim, on later mesh dims
  for (int64_t m = dim + 1; m < mesh.ndim(); ++m) {
    TORCH_CHECK_VALUE(!to[m].is_strided_shard() || to[m].dim() != 0, "[fully_shard] '", name, "' is ",
                      spec_of(t)->to_string(), ": a dim that has a StridedShard cannot be sharded once more");
    if (to[m].is_sharded_on(0)) pieces *= mesh.size(m);
  }
  to[dim] = pieces == 1 ? Shard(0) : StridedShard(0, pieces);
  return to;
}

// The parameters without a group. Error: a group has parameters in `module` and outside of it.
std::vector<ToShard> parameters_without_group(const torch::nn::Module& module, const DeviceMesh& mesh, int64_t dim) {
  std::vector<ToShard> result;
  absl::flat_hash_set<const c10::TensorImpl*> own;
  for (const at::Tensor& p : module.parameters()) own.insert(p.unsafeGetTensorImpl());
  for (const auto& p : module.named_parameters()) {
    const at::Tensor& t = p.value();
    if (!t.defined()) continue;
    const auto group = is_dtensor(t) ? leaf_group_of(t) : nullptr;
    if (!group) {
      result.push_back({p.key(), t, layout_in_group(p.key(), t, mesh, dim)});
      continue;
    }
    const auto leaves = group->leaves();
    const bool is_inside = std::all_of(
        leaves.begin(), leaves.end(), [&](const at::Tensor& leaf) { return own.contains(leaf.unsafeGetTensorImpl()); });
    TORCH_CHECK_VALUE(is_inside, "[fully_shard] '", p.key(), "' of ", module.name(),
                      " is in the group of a larger module already: call fully_shard() for submodules first, then for "
                      "the modules that contain them");
  }
  return result;
}

// New contents by memory and layout of the old: tied parameters have both in common.
using Moved = absl::flat_hash_map<std::pair<std::shared_ptr<LocalStorage>, SpecPtr>, at::Tensor>;

// Redistributes a parameter in place, with its gradient.
void change_layout(const ToShard& p, Moved& moved) {
  const c10::AutoGradMode no_grad(false);
  const DTensorMeta& meta = meta_without_sync(p.tensor);
  at::Tensor& data = moved[{meta.storage, meta.spec}];
  const CommCause cause = explicit_cause("fully_shard");
  if (!data.defined()) data = redistribute_below_autograd(p.tensor.detach(), p.to, cause);
  const at::Tensor grad = p.tensor.grad();
  p.tensor.set_data(data);
  if (is_dtensor(grad)) p.tensor.mutable_grad() = redistribute_below_autograd(grad, p.to, cause);
}

void lay_out(torch::nn::Module& module, const std::vector<ToShard>& parameters, const DeviceMesh& mesh) {
  const auto lay_out_all = [&] {
    Moved moved;
    for (const ToShard& p : parameters) {
      if (is_dtensor(p.tensor) && !spec_of(p.tensor)->is_replicated()) {
        change_layout(p, moved);
      } else {
        shard_parameter(module, p.name, mesh, p.to);
      }
    }
  };
  const auto is_plain = [](const at::Tensor& t) { return t.defined() && !is_dtensor(t); };
  const auto all = module.parameters(), buffers = module.buffers();
  if (std::any_of(all.begin(), all.end(), is_plain) || std::any_of(buffers.begin(), buffers.end(), is_plain)) {
    distribute_module(module, mesh, [&](const std::string& path, torch::nn::Module&, const DeviceMesh&) {
      if (path.empty()) lay_out_all();
    });
  } else {
    lay_out_all();
    name_parameters(module);
  }
}

}  // namespace

void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  const int64_t dim = checked_mesh_dim(mesh, options.mesh_dim);
  const auto parameters = parameters_without_group(module, mesh, dim);
  const bool contains_groups = parameters.size() < module.parameters().size();
  const ModuleContents before(module);
  try {
    lay_out(module, parameters, mesh);
  } catch (...) {
    before.restore();
    throw;
  }
  std::vector<at::Tensor> members;
  for (const ToShard& p : parameters) {
    if (p.tensor.dim() > 0) members.push_back(p.tensor);
  }
  const auto leaves = std::make_shared<const LeafGroup>(members);
  const auto group = std::make_shared<ParameterGroup>(leaves, dim, contains_groups || !options.reshard_after_forward);
  for (const at::Tensor& p : members) {
    change_module_traits(p, [&](ModuleTraits& traits) {
      traits.group = group;
      traits.leaves = leaves;
    });
  }
}

void reshard(torch::nn::Module& module) {
  for (const at::Tensor& p : module.parameters()) {
    const auto group = is_dtensor(p) ? parameter_group_of(p) : nullptr;
    if (group) group->drop();
  }
}

}  // namespace dtensor
