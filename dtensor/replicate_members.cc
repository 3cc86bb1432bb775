#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string>
#include <utility>

#include "dtensor/distribute_module.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

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
