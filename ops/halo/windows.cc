#include "ops/halo/windows.h"

#include <algorithm>

namespace dtensor::internal {

IndexRange WindowDim::reach(const IndexRanges& windows) const {
  if (windows.empty()) return {};
  const IndexRange& run = windows[0];
  return {run.begin * stride, (run.size - 1) * stride + span()};
}

HaloDim WindowDim::halo_dim() const {
  const int64_t places = count > 0 ? (count - 1) * stride + span() : 0;
  IndexMap map{places, {}};
  if (const int64_t shown = std::min(elements, places - padding); shown > 0) map.stretches = {{padding, shown, 0, 1}};
  return {dim, std::move(map), [w = *this](const IndexRanges& windows) {
            const IndexRange run = w.reach(windows);
            return run.size > 0 ? IndexRanges{run} : IndexRanges{};
          }};
}

IndexRange SpreadDim::reach(const IndexRanges& places) const {
  if (places.empty()) return {};
  const int64_t begin = places[0].begin, last = begin + places[0].size - 1;
  const int64_t before = std::max<int64_t>(begin - first - span + 1, 0);  // in places
  const int64_t lowest = (before + stride - 1) / stride;
  const int64_t beyond = last < first ? 0 : std::min(elements, (last - first) / stride + 1);
  return lowest < beyond ? IndexRange{lowest, beyond - lowest} : IndexRange{};
}

HaloDim SpreadDim::halo_dim() const {
  return {dim, IndexMap{elements, {{0, elements, 0, 1}}}, [s = *this](const IndexRanges& places) {
            const IndexRange run = s.reach(places);
            return run.size > 0 ? IndexRanges{run} : IndexRanges{};
          }};
}

bool has_runs_along(const Spec& spec, const std::vector<int64_t>& dims) {
  return std::none_of(spec.placements().begin(), spec.placements().end(), [&](const Placement& p) {
    return p.is_strided_shard() && std::find(dims.begin(), dims.end(), p.dim()) != dims.end();
  });
}

}  // namespace dtensor::internal
