// A sharded placement on another tensor dim, as the same cuts of a view have it.
#pragma once

#include <cstdint>

#include "placement/placement.h"

namespace dtensor::internal {

// REQUIRES: p.is_sharded().
inline Placement with_dim(const Placement& p, int64_t dim) {
  return p.is_shard() ? Shard(dim) : StridedShard(dim, p.split_factor());
}

}  // namespace dtensor::internal
