// Facts about a tensor that need no communication when they are cached: sums along a dim, margins, and ghost regions.
// Each is cached for one tensor, not for its views, by the rules of storage_cache.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor::internal {

// May facts about `t` be cached? Not for complex tensors, nor where the user may write to the local tensors.
bool may_cache_facts(const at::Tensor& t);
// The same for a new tensor of `spec`.
bool may_cache_facts_of_new(const Spec& spec);

// Caches the sums of `t` along `dim`, which has size 1 in `sums`. For operators that know them without communication:
// the gradient of a loss by the scores of a row is one number and zeros.
void cache_sums(const at::Tensor& t, int64_t dim, at::Tensor sums);
// Undefined: not cached.
at::Tensor cached_sums(const at::Tensor& t, int64_t dim);

// Caches `margins` (CachedMargins) of `t`. `bytes`: of the rank that has most.
void cache_margins(const at::Tensor& t, int64_t dim, int64_t width, RankTensors margins, int64_t bytes);
// Cached margins of at least `width`; nullopt: not cached. The result may be wider.
std::optional<CachedMargins> cached_margins(const at::Tensor& t, int64_t dim, int64_t width);

void cache_ghost_region(const at::Tensor& t, GhostRegion region);
// Null: not cached. For a copied view call meta_for_read() first, since the region is of its last refresh. A write
// through a copied view keeps the region if the same exchange brings its new elements, or none are needed
// (ViewOrigin::after_write() in copied_view.h).
std::shared_ptr<const GhostRegion> cached_ghost_region(const at::Tensor& t);
void drop_ghost_region(const at::Tensor& t);

}  // namespace dtensor::internal
