#include "dtensor/layout_cache/cached_facts.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace dtensor::internal {
namespace {

bool is_real(const Spec& spec) { return !c10::isComplexType(spec.dtype()); }

// Is `entry` about `t` itself?
bool is_about(const CacheEntry& entry, const at::Tensor& t, const DTensorMeta& meta) {
  return entry.of.spec == meta.spec && entry.of.offset == t.storage_offset() && entry.of.seen == meta.seen;
}

void add_fact(const at::Tensor& t, CachedValue value, int64_t bytes) {
  const auto& storage = meta_without_sync(t).storage;
  add_to_cache(storage, memory_range_of(t), std::move(value), writes_of(*storage), current_recording(), bytes);
}

// A copy of the cached fact about `t` for which `fits` holds.
template <typename Value, typename Fits>
std::optional<Value> find_fact(const at::Tensor& t, const DTensorMeta& meta, Fits fits) {
  std::lock_guard lock(meta.storage->cache_mutex);
  if (!may_cache(*meta.storage)) return std::nullopt;
  const CacheEntry* entry = find_in_cache<Value>(
      *meta.storage, [&](const CacheEntry& e, const Value& value) { return is_about(e, t, meta) && fits(value); });
  return entry == nullptr ? std::nullopt : std::optional(std::get<Value>(entry->value));
}

}  // namespace

bool may_cache_facts(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  return may_cache(*meta.storage) && is_real(*meta.spec);
}

bool may_cache_facts_of_new(const Spec& spec) { return is_real(spec) && !c10::InferenceMode::is_enabled(); }

void cache_sums(const at::Tensor& t, int64_t dim, at::Tensor sums) {
  if (!may_cache(*meta_without_sync(t).storage)) return;
  const int64_t bytes = spec_of(sums)->max_local_bytes();  // the memory meter counts them as a tensor
  add_fact(t, CachedSums{std::move(sums), dim}, bytes);
}

at::Tensor cached_sums(const at::Tensor& t, int64_t dim) {
  const auto found = find_fact<CachedSums>(t, meta_for_read(t), [&](const CachedSums& s) { return s.dim == dim; });
  return found ? found->sums : at::Tensor();
}

void cache_margins(const at::Tensor& t, int64_t dim, int64_t width, RankTensors margins, int64_t bytes) {
  if (!may_cache_facts(t)) return;
  auto storage = std::make_shared<LocalStorage>(spec_of(t)->mesh().world(), bytes);
  add_fact(t, CachedMargins{dim, width, std::move(margins), std::move(storage)}, bytes);
}

std::optional<CachedMargins> cached_margins(const at::Tensor& t, int64_t dim, int64_t width) {
  return find_fact<CachedMargins>(t, meta_for_read(t),
                                  [&](const CachedMargins& m) { return m.dim == dim && m.width >= width; });
}

// ------------------------------------------------------------ ghost regions

const LazyParts::Made* LazyParts::get() {
  std::lock_guard lock(mutex_);
  if (make_) {
    made_ = make_();
    make_ = nullptr;
  }
  was_got_ = true;
  return made_ ? &*made_ : nullptr;
}

const LazyParts::Made* LazyParts::if_made() {
  std::lock_guard lock(mutex_);
  return made_ ? &*made_ : nullptr;
}

bool LazyParts::was_got() {
  std::lock_guard lock(mutex_);
  return was_got_;
}

void LazyParts::forget() {
  std::lock_guard lock(mutex_);
  make_ = nullptr;
}

bool LazyParts::are_forgotten() {
  std::lock_guard lock(mutex_);
  return !make_ && !made_;
}

const GhostRegion::Dim* GhostRegion::along(int64_t dim) const {
  const auto found = std::find_if(dims.begin(), dims.end(), [&](const Dim& d) { return d.dim == dim; });
  return found == dims.end() ? nullptr : &*found;
}

Part box_of_rank(const GhostRegion& around, const Spec& spec, int64_t rank) {
  Part box = spec.layout_of_rank(rank);
  const auto coordinate = spec.mesh().coordinate(rank);
  for (const auto& [dim, cut_by, known] : around.dims) {
    int64_t place = 0;
    for (const int64_t m : cut_by) place = place * spec.mesh().size(m) + coordinate[m];
    box.dims[dim] = {known[place]};
    box.offsets[dim] = known[place].begin;
  }
  return box;
}

int64_t box_bytes(const GhostRegion& around, const Spec& spec) {
  Shape sizes = spec.layout_of_rank(spec.mesh().ranks()[0]).sizes();
  for (const auto& [dim, cut_by, known] : around.dims) {
    for (const Run& run : known) sizes[dim] = std::max(sizes[dim], run.size);
  }
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(spec.dtype()));
}

void cache_ghost_region(const at::Tensor& t, GhostRegion region) {
  if (!may_cache_facts(t)) return;
  const int64_t bytes = box_bytes(region, *spec_of(t));  // the memory meter counts them with the boxes
  add_fact(t, std::make_shared<const GhostRegion>(std::move(region)), bytes);
}

std::shared_ptr<const GhostRegion> cached_ghost_region(const at::Tensor& t) {
  // Not meta_for_read(): the local tensors may be lazy, and must not be fetched for this.
  const auto found = find_fact<CachedGhostRegion>(t, meta_without_sync(t), [](const auto&) { return true; });
  return found && !(*found)->boxes->are_forgotten() ? *found : nullptr;
}

void drop_ghost_region(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  drop_entries(*meta.storage, [&](const CacheEntry& e) {
    return std::holds_alternative<CachedGhostRegion>(e.value) && is_about(e, t, meta);
  });
}

}  // namespace dtensor::internal
