#include "dtensor/distribute_module.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "dtensor/modules/module_layouts.h"
#include "dtensor/parallel/module_contents.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

struct Named {
  std::string name;
  at::Tensor tensor;
  bool is_buffer = false;
};

// Parameters, then buffers, with their paths.
std::vector<Named> tensors_of(const torch::nn::Module& module) {
  std::vector<Named> result;
  for (const auto& p : module.named_parameters()) result.push_back({p.key(), p.value()});
  for (const auto& b : module.named_buffers()) result.push_back({b.key(), b.value(), true});
  std::erase_if(result, [](const Named& n) { return !n.tensor.defined(); });
  return result;
}

// Made inside a MeshScope of a meta mesh: its layout is not decided yet.
bool is_shape_alone(const at::Tensor& t) {
  return is_dtensor(t) && spec_of(t)->mesh().world().is_meta() && spec_of(t)->is_replicated();
}

// Made by a factory function inside a MeshScope: likewise.
bool is_of_mesh_scope(const at::Tensor& t) {
  return is_dtensor(t) && meta_without_sync(t).from_factory && spec_of(t)->is_replicated();
}

bool has_layout(const at::Tensor& t) { return is_dtensor(t) && !is_shape_alone(t) && !is_of_mesh_scope(t); }

// How often this thread distributed a tensor in place.
thread_local int64_t times_distributed = 0;

// `relayout`: a tensor that has another layout gets this one.
void distribute_in_place(const Named& n, const DeviceMesh& mesh, const Placements& placements,
                         bool relayout = false) try {
  c10::AutoGradMode no_grad(false);
  ++times_distributed;
  const at::Tensor& t = n.tensor;
  TORCH_CHECK_VALUE(!t.is_meta() || is_dtensor(t),
                    "a plain tensor on the device \"meta\" cannot become distributed in place: make the module inside "
                    "MeshScope(mesh.meta())");
  const at::Tensor grad = t.grad();
  const at::Tensor data = relayout && has_layout(t) ? redistribute(t.detach(), placements)
                                                    : distribute_tensor(t.detach(), mesh, placements);
  keep_module_traits(t, data);
  t.set_data(data);
  if (!grad.defined()) return;
  t.mutable_grad() =
      is_dtensor(grad) ? redistribute(grad, placements) : distribute_tensor(grad.detach(), mesh, placements);
} catch (c10::Error& e) {
  e.add_context("while distributing '" + n.name + "'");
  throw;
}

// Groups of tensors with one value: parameters that share all their memory before they are distributed.
class Ties {
 public:
  explicit Ties(const std::vector<Named>& tensors) {
    for (const Named& n : tensors) {
      const void* memory = nullptr;
      if (is_dtensor(n.tensor)) {
        memory = meta_without_sync(n.tensor).storage.get();
      } else if (n.tensor.has_storage() && !n.tensor.is_meta() && n.tensor.numel() > 0) {
        memory = n.tensor.const_data_ptr();
      }
      if (memory == nullptr) continue;
      of_[n.tensor.unsafeGetTensorImpl()] =
          &groups_[std::make_tuple(memory, n.tensor.sizes().vec(), n.tensor.strides().vec())];
    }
    for (const Named& n : tensors) {
      if (auto it = of_.find(n.tensor.unsafeGetTensorImpl()); it != of_.end()) it->second->push_back(n);
    }
  }

  // The tensors tied to `t`, itself included.
  const std::vector<Named>& of(const at::Tensor& t) const {
    static const auto& none = *new std::vector<Named>;
    const auto it = of_.find(t.unsafeGetTensorImpl());
    return it == of_.end() ? none : *it->second;
  }

 private:
  std::map<std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>>, std::vector<Named>> groups_;
  absl::flat_hash_map<const c10::TensorImpl*, std::vector<Named>*> of_;
};

// Ties the tensors of a group again: they share the parts of the first one that is distributed.
void tie(const Named& n, const Ties& ties) {
  c10::AutoGradMode no_grad(false);
  for (const Named& other : ties.of(n.tensor)) {
    if (!is_dtensor(other.tensor) || other.tensor.is_same(n.tensor)) continue;
    if (is_dtensor(n.tensor)) {
      const DTensorMeta &a = meta_without_sync(n.tensor), &b = meta_without_sync(other.tensor);
      TORCH_CHECK_VALUE(a.spec == b.spec, "[distribute_module] '", n.name, "' and '", other.name,
                        "' share their memory, but were given the layouts ", a.spec->to_string(), " and ",
                        b.spec->to_string());
      if (a.storage == b.storage) return;
    }
    n.tensor.set_data(other.tensor.detach());
    return;
  }
}

void check_not_distributed(const std::vector<Named>& tensors) {
  const Named* first = nullptr;
  for (const Named& n : tensors) {
    if (!has_layout(n.tensor)) return;
    if (first == nullptr) first = &n;
  }
  TORCH_CHECK_VALUE(first == nullptr, "[distribute_module] the module is distributed already: '", first->name, "' is ",
                    spec_of(first->tensor)->to_string(),
                    ". Say all layouts in one call, or redistribute the parameters.");
}

int64_t count_distributed(const torch::nn::Module& module) {
  const std::vector<Named> tensors = tensors_of(module);
  return std::count_if(tensors.begin(), tensors.end(), [](const Named& n) { return is_dtensor(n.tensor); });
}

// Whether it distributed a parameter or buffer.
bool partition(torch::nn::Module& module, const DeviceMesh& mesh, const PartitionFn& partition_fn) {
  const int64_t times = times_distributed, count = count_distributed(module);
  module.apply([&](const std::string& name, torch::nn::Module& m) { partition_fn(name, m, mesh); }, std::string());
  return times_distributed != times || count_distributed(module) != count;
}

std::string paths_of(const torch::nn::Module& module) {
  std::string paths;
  module.apply([&](const std::string& name,
                   const torch::nn::Module&) { paths += (paths.empty() ? "\"" : ", \"") + name + "\""; },
               std::string());
  return paths;
}

void distribute_all(torch::nn::Module& module, const std::vector<Named>& tensors, const DeviceMesh& mesh,
                    const PartitionFn& partition_fn, bool need_partition) {
  const Ties ties(tensors);
  if (partition_fn) {
    const bool partitioned = partition(module, mesh, partition_fn);
    TORCH_CHECK_VALUE(partitioned || !need_partition || tensors.empty(),
                      "[distribute_module] partition_fn sharded no parameter of ", module.name(),
                      ", which would be replicated as a whole. It was called with the names ", paths_of(module),
                      ". To replicate the module, pass no partition_fn, or nullptr.");
  }
  for (const Named& n : tensors) {
    tie(n, ties);
    if (!is_dtensor(n.tensor) || (is_of_mesh_scope(n.tensor) && !n.is_buffer))
      distribute_in_place(n, mesh, Placements(mesh.ndim(), Replicate()));
    const Spec& spec = *spec_of(n.tensor);
    TORCH_CHECK_VALUE(spec.mesh().world().with_data() == mesh.world().with_data(), "[distribute_module] '", n.name,
                      "' is ", spec.to_string(), " of another world, ", spec.mesh().world().name(),
                      "; this module goes to ", mesh.to_string(), " of ", mesh.world().name());
  }
}

// After an error the module is unchanged.
void distribute_or_restore(torch::nn::Module& module, const std::vector<Named>& tensors, const DeviceMesh& mesh,
                           const PartitionFn& partition_fn, bool need_partition) {
  const ModuleContents before(module);
  try {
    distribute_all(module, tensors, mesh, partition_fn, need_partition);
  } catch (...) {
    before.restore();
    throw;
  }
  name_parameters(module);
}

// ------------------------------------------------------------ constants

void check_member(const at::Tensor* member, size_t position, const DeviceMesh& mesh) {
  const std::string name = c10::str("[replicate_members] member ", position);
  TORCH_CHECK_VALUE(member != nullptr, name, " is a null pointer");
  const at::Tensor& t = *member;
  TORCH_CHECK_VALUE(t.defined(), name, " is an undefined tensor: give it a value first");
  if (is_dtensor(t)) {
    const Spec& spec = *spec_of(t);
    TORCH_CHECK_VALUE(spec.mesh() == mesh && spec.is_replicated(), name, ", of shape ", t.sizes(),
                      ", is distributed already as ", spec.to_string(), ", not replicated on ", mesh.to_string());
    return;
  }
  TORCH_CHECK_VALUE(t.is_leaf(), name, ", of shape ", t.sizes(),
                    ", has autograd history, so it is no constant: detach() it, or compute it in forward");
}

// The mesh of the distributed tensors in `module`.
DeviceMesh mesh_of(const torch::nn::Module& module) {
  DeviceMesh mesh;
  const auto add = [&](const std::string& name, const at::Tensor& t) {
    if (!is_dtensor(t)) return;
    const DeviceMesh& own = spec_of(t)->mesh();
    if (!mesh.defined()) mesh = own;
    TORCH_CHECK_VALUE(mesh == own, "[replicate_members] '", name, "' of ", module.name(), " is on ", own.to_string(),
                      ", and what comes before it on ", mesh.to_string(),
                      ": call replicate_members(mesh, {...}) with the mesh that the members are used on");
  };
  for (const auto& p : module.named_parameters()) add(p.key(), p.value());
  for (const auto& b : module.named_buffers()) add(b.key(), b.value());
  TORCH_CHECK_VALUE(mesh.defined(), "[replicate_members] ", module.name(),
                    " has no distributed parameter or buffer: call distribute_module() first, or "
                    "replicate_members(mesh, {...})");
  return mesh;
}

}  // namespace

void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh, const PartitionFn& partition_fn) {
  TORCH_CHECK_VALUE(mesh.defined(), "[distribute_module] no mesh: give a DeviceMesh(world, shape)");
  const std::vector<Named> tensors = tensors_of(module);
  check_not_distributed(tensors);
  distribute_or_restore(module, tensors, mesh, partition_fn, /*need_partition=*/true);
}

namespace internal {

void distribute_rest_of_module(torch::nn::Module& module, const DeviceMesh& mesh, const PartitionFn& partition_fn) {
  distribute_or_restore(module, tensors_of(module), mesh, partition_fn, /*need_partition=*/false);
}

bool has_decided_layout(const at::Tensor& t) { return has_layout(t); }

void shard_parameter_over(torch::nn::Module& module, const std::string& path, const std::string& name,
                          const DeviceMesh& mesh, int64_t mesh_dim, const Placement& placement) {
  const at::Tensor t = module.named_parameters(/*recurse=*/false)[name];
  const std::string full_name = path.empty() ? name : path + "." + name;
  Placements placements(mesh.ndim(), Replicate());
  if (has_layout(t)) {
    TORCH_CHECK_VALUE(spec_of(t)->mesh() == mesh, "[parallelize_module] '", full_name, "' of ", module.name(), " is ",
                      spec_of(t)->to_string(), ", not on ", mesh.to_string());
    placements = spec_of(t)->placements();
  }
  placements[mesh_dim] = placement;
  distribute_in_place({full_name, t}, mesh, placements, /*relayout=*/true);
}

}  // namespace internal

void shard_parameter(torch::nn::Module& module, const std::string& name, const DeviceMesh& mesh,
                     const Placements& placements) {
  std::string known;
  for (const Named& n : tensors_of(module)) {
    if (n.name == name) return distribute_in_place(n, mesh, placements);
    known += (known.empty() ? "" : ", ") + n.name;
  }
  TORCH_CHECK_VALUE(false, "[shard_parameter] ", module.name(), " has no parameter '", name, "'; it has ",
                    known.empty() ? "none" : known);
}

void name_parameters(torch::nn::Module& module, const std::string& prefix) {
  absl::flat_hash_map<const c10::TensorImpl*, bool> named;  // a tied parameter keeps its first name
  for (const Named& n : tensors_of(module)) {
    if (!is_dtensor(n.tensor) || !named.emplace(n.tensor.unsafeGetTensorImpl(), true).second) continue;
    set_name(n.tensor, prefix.empty() ? n.name : prefix + "." + n.name);
  }
}

std::vector<NamedSpec> parameter_layouts(const torch::nn::Module& module) {
  std::vector<NamedSpec> result;
  for (const auto& p : module.named_parameters()) {
    if (is_dtensor(p.value())) result.push_back({p.key(), spec_of(p.value())});
  }
  return result;
}

void replicate_members(const DeviceMesh& mesh, const std::vector<at::Tensor*>& members) {
  TORCH_CHECK_VALUE(mesh.defined(), "[replicate_members] no mesh: give a DeviceMesh(world, shape)");
  for (size_t i = 0; i < members.size(); ++i) check_member(members[i], i, mesh);
  std::vector<std::pair<at::Tensor, at::Tensor>>
      made;  // a plain tensor and its replacement; several members may be one tensor
  for (at::Tensor* member : members) {
    if (is_dtensor(*member)) continue;
    const auto is_of_member = [&](const auto& m) { return m.first.is_same(*member); };
    auto it = std::find_if(made.begin(), made.end(), is_of_member);
    if (it == made.end()) it = made.insert(it, {*member, distribute_tensor(*member, mesh)});
    *member = it->second;
  }
}

void replicate_members(const torch::nn::Module& module, const std::vector<at::Tensor*>& members) {
  replicate_members(mesh_of(module), members);
}

}  // namespace dtensor
