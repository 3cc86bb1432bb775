// Which dims of a tensor several ranks share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/spec.h"

namespace dtensor::internal {

// Whether several ranks share `dim` along the mesh dim.
bool cuts_dim(const Spec& spec, int64_t mesh_dim, int64_t dim);
// The same along any mesh dim.
bool is_cut(const Spec& spec, int64_t dim);
// The mesh dims of more than one rank that shard one of these dims.
std::vector<int64_t> cutting_mesh_dims(const Spec& spec, const std::vector<int64_t>& dims);

}  // namespace dtensor::internal
