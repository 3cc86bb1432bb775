#include "dtensor/redistribution/internal/plain_gradients.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

void make_plain(std::vector<at::Tensor>& gradients, const DeviceMesh& mesh, const char* function) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor& gradient = gradients[i];
    if (!gradient.defined() || !is_dtensor(gradient)) continue;
    const DTensorMeta& meta = meta_without_sync(gradient);
    const Spec& spec = *meta.spec;
    const bool whole = std::all_of(spec.placements().begin(), spec.placements().end(),
                                   [](const Placement& p) { return p.is_replicate(); });
    const auto& ranks = spec.mesh().local_ranks();
    const auto own = std::find(ranks.begin(), ranks.end(), mesh.local_ranks()[i]);
    if (!whole || own == ranks.end() || meta.may_need_sync) continue;  // not from such zeros
    TORCH_CHECK_NOT_IMPLEMENTED(
        !(c10::GradMode::is_enabled() && gradient.requires_grad()), "[", function,
        "] backward: gradients of gradients of a tensor of which unbind() or split() gave outputs that were not used, "
        "inside a MeshScope: call backward outside it, or use all outputs");
    const LocalGuard guard;
    gradient = at::Tensor(meta.locals[own - ranks.begin()]).detach();
  }
}

}  // namespace dtensor::internal
