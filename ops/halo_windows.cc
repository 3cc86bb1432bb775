#include "ops/halo_windows.h"

#include <algorithm>

namespace dtensor {

Run WindowDim::reach(const Runs& windows) const {
  if (windows.empty()) return {};
  const Run& run = windows[0];
  return {run.begin * stride, (run.size - 1) * stride + span()};
}

HaloDim WindowDim::halo_dim() const {
  const int64_t places = count > 0 ? (count - 1) * stride + span() : 0;
  IndexMap map{places, {}};
  if (const int64_t shown = std::min(elements, places - padding); shown > 0) map.stretches = {{padding, shown, 0, 1}};
  return {dim, std::move(map), [w = *this](const Runs& windows) {
            const Run run = w.reach(windows);
            return run.size > 0 ? Runs{run} : Runs{};
          }};
}

bool has_runs_of_windows(const Spec& spec, const std::vector<WindowDim>& windows) {
  for (const Placement& p : spec.placements()) {
    if (!p.is_strided_shard()) continue;
    for (const WindowDim& w : windows) {
      if (p.dim() == w.dim) return false;
    }
  }
  return true;
}

}  // namespace dtensor
