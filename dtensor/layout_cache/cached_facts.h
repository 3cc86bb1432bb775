// Facts about a tensor that need no communication when they are cached: sums along a dim, margins, and ghost regions
// (ghost_region.h). Each is cached for one tensor, not for its views, by the rules of storage_cache.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <variant>

#include "comm/rank_tensors.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"

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

// ------------------------------------------------------------ any fact

// Is `entry` about `t` itself?
bool is_about(const CacheEntry& entry, const at::Tensor& t, const DTensorMeta& meta);
void add_fact(const at::Tensor& t, CachedValue value, int64_t bytes);
// A copy of the cached fact about `t` for which `fits` holds.
template <typename Value, typename Fits>
std::optional<Value> find_fact(const at::Tensor& t, const DTensorMeta& meta, Fits fits) {
  CachedState* cached = meta.storage->cached.if_made();
  if (cached == nullptr || !may_cache(*meta.storage)) return std::nullopt;
  std::lock_guard lock(cached->mutex);
  const CacheEntry* entry = find_in_cache<Value>(
      *meta.storage, [&](const CacheEntry& e, const Value& value) { return is_about(e, t, meta) && fits(value); });
  return entry == nullptr ? std::nullopt : std::optional(std::get<Value>(entry->value));
}

}  // namespace dtensor::internal
