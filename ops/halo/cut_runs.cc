#include "ops/halo/cut_runs.h"

#include <algorithm>

#include "ops/halo/plan.h"

namespace dtensor::internal {

int64_t place_of(const Spec& spec, int64_t dim, int64_t rank) {
  const auto coordinate = spec.mesh().coordinate(rank);
  int64_t place = 0;
  for (const int64_t m : cutting_mesh_dims(spec, {dim})) place = place * spec.mesh().size(m) + coordinate[m];
  return place;
}

std::optional<std::vector<Run>> runs_along(const Spec& spec, int64_t dim) {
  const std::vector<int64_t> mesh_dims = cutting_mesh_dims(spec, {dim});
  Shape coordinate(spec.mesh().ndim(), 0);
  int64_t places = 1;
  for (const int64_t m : mesh_dims) places *= spec.mesh().size(m);
  std::vector<Run> result;
  for (int64_t place = 0; place < places; ++place) {
    int64_t rest = place;
    for (size_t k = mesh_dims.size(); k-- > 0;) {
      coordinate[mesh_dims[k]] = rest % spec.mesh().size(mesh_dims[k]);
      rest /= spec.mesh().size(mesh_dims[k]);
    }
    const Part part = local_layout(spec.sizes(), spec.mesh().shape(), spec.placements(), coordinate);
    if (part.dims[dim].size() != 1) return std::nullopt;
    result.push_back(part.dims[dim][0]);
  }
  return result;
}

bool contain(const std::vector<Run>& outer, const std::vector<Run>& inner) {
  return std::equal(outer.begin(), outer.end(), inner.begin(), inner.end(), contains);
}

Run hull_of(const Run& a, const Run& b) {
  const int64_t begin = std::min(a.begin, b.begin);
  return {begin, std::max(end_of(a), end_of(b)) - begin};
}

}  // namespace dtensor::internal
