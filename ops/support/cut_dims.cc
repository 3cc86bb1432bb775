#include "ops/support/cut_dims.h"

#include <algorithm>

namespace dtensor::internal {

bool cuts_dim(const Spec& spec, int64_t mesh_dim, int64_t dim) {
  return spec.placements()[mesh_dim].is_sharded_on(dim) && spec.mesh().size(mesh_dim) > 1;
}

bool is_cut(const Spec& spec, int64_t dim) {
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (cuts_dim(spec, m, dim)) return true;
  }
  return false;
}

std::vector<int64_t> cutting_mesh_dims(const Spec& spec, const std::vector<int64_t>& dims) {
  std::vector<int64_t> cutting;
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (std::any_of(dims.begin(), dims.end(), [&](int64_t dim) { return cuts_dim(spec, m, dim); }))
      cutting.push_back(m);
  }
  return cutting;
}

}  // namespace dtensor::internal
