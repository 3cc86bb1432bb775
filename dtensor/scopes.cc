#include "dtensor/scopes.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/extend/redistribute_autograd.h"
#include "dtensor/extend/representation.h"

namespace dtensor {

MeshScope::MeshScope(const DeviceMesh& mesh)
    : guard_([&mesh](DispatchScope& s) {
        TORCH_CHECK_VALUE(mesh.defined(), "[MeshScope] no mesh: give a DeviceMesh(world, shape)");
        s.mesh = mesh;
      }) {}

RedistributeMemoryLimit::RedistributeMemoryLimit(int64_t max_bytes)
    : guard_([max_bytes](DispatchScope& s) {
        TORCH_CHECK_VALUE(max_bytes > 0, "[RedistributeMemoryLimit] max_bytes is ", max_bytes,
                          "; give the bytes that a rank may need while it redistributes, at least 1");
        s.limits.max_bytes = std::min(s.limits.max_bytes, max_bytes);
      }) {}

ModulePath::ModulePath(const std::string& name)
    : guard_([&name](Scope& s) {
        if (name.empty()) return;
        if (!s.module_path.empty()) s.module_path += '.';
        s.module_path += name;
      }) {}

void reduce_gradients(const std::vector<at::Tensor>& parameters) {
  c10::AutoGradMode no_grad(false);
  for (const at::Tensor& p : parameters) {
    if (!is_dtensor(p) || !is_dtensor(p.grad())) continue;
    const DTensorMeta& meta = peek_meta(p);
    CommCause cause{"reduce_gradients", meta.name ? *meta.name : "", current_scope().module_path, /*implicit=*/false};
    if (meta.name) cause.module_path = module_of(meta);
    p.mutable_grad() = redistribute_as(p.grad(), meta.spec->placements(), cause);
  }
}

}  // namespace dtensor
