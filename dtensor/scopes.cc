#include "dtensor/scopes.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/gradients/reduce_together.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

MeshScope::MeshScope(const DeviceMesh& mesh)
    : guard_([&mesh](DispatchScope& s) {
        TORCH_CHECK_VALUE(mesh.defined(), "[MeshScope] no mesh: give a DeviceMesh(world, shape)");
        s.mesh = mesh;
      }) {}

RedistributeMemoryLimit::RedistributeMemoryLimit(int64_t max_bytes)
    : guard_([max_bytes](DispatchScope& s) {
        TORCH_CHECK_VALUE(max_bytes > 0, "[RedistributeMemoryLimit] max_bytes is ", max_bytes,
                          "; give the bytes that a rank may need while it redistributes, at least 1");
        int64_t& least = s.hints.limits.max_bytes;
        least = std::min(least, max_bytes);
      }) {}

ModulePath::ModulePath(const std::string& name)
    : guard_([&name](Scope& s) {
        if (name.empty()) return;
        if (!s.module_path.empty()) s.module_path += '.';
        s.module_path += name;
      }) {}

void reduce_gradients(const std::vector<at::Tensor>& parameters) {
  const c10::AutoGradMode no_grad(false);
  std::vector<std::vector<at::Tensor>> by_world;
  for (const at::Tensor& p : parameters) {
    if (!is_dtensor(p) || !is_dtensor(p.grad())) continue;
    const auto same_world = [&](const std::vector<at::Tensor>& others) {
      return spec_of(others.front())->mesh().world() == spec_of(p)->mesh().world();
    };
    auto at = std::find_if(by_world.begin(), by_world.end(), same_world);
    if (at == by_world.end()) at = by_world.insert(at, std::vector<at::Tensor>());
    at->push_back(p);
  }
  for (const auto& of_one : by_world) reduce_together(of_one, {.op = "reduce_gradients", .implicit = false});
}

}  // namespace dtensor
