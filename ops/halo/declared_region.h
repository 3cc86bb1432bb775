// The ghost regions of a tensor with a declared ghost width (dtensor/ghost_width.h): which elements they have, and the
// exchange that fetches them. Slices read one region, and operators that compute with a halo (roll(), padding,
// convolution, pooling and the like) another, the periodic one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm_event.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "ops/halo/plan.h"

namespace dtensor::internal {

struct DeclaredRegion {
  std::vector<int64_t> width;            // that was declared, per dim
  GhostRegion region;                    // without boxes
  std::shared_ptr<const HaloPlan> plan;  // fetches the boxes
};

// Null: no width was declared for `t`, its layout has no region, nothing about it may be cached, or the region exceeds
// a limit. The same on all ranks.
std::shared_ptr<const DeclaredRegion> declared_region(const at::Tensor& t, bool periodic);

// The region of `t` with its boxes: cached, which is reported as `saved_bytes` that were not received again, or
// fetched now by a collective call. REQUIRES: `declared` is a periodic region of `t`.
CachedGhostRegion periodic_region(const DeclaredRegion& declared, const at::Tensor& t, int64_t saved_bytes,
                                  const CommCause& cause);

// Fetches the boxes of `declared`, and caches the region for `t`. A collective call.
CachedGhostRegion fetch_region(const DeclaredRegion& declared, const at::Tensor& t, const CommCause& cause);

}  // namespace dtensor::internal
