#include "dtensor/layout_cache/ghost_region.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "dtensor/layout_cache/cached_facts.h"

namespace dtensor::internal {

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

LocalLayout box_of_rank(const GhostRegion& around, const Spec& spec, int64_t rank) {
  LocalLayout box = spec.layout_of_rank(rank);
  const auto coordinate = spec.mesh().coordinate(rank);
  for (const auto& [dim, cut_by, known] : around.dims) {
    int64_t place = 0;
    for (const int64_t m : cut_by) place = place * spec.mesh().size(m) + coordinate[m];
    box.dims[dim] = {known[place]};
    box.offsets[dim] = known[place].begin;
  }
  return box;
}

LazyParts::Made boxes_along(const GhostRegion& around, const Spec& spec, const std::vector<int64_t>& dims) {
  LazyParts::Made boxes = *around.boxes->get();
  LocalGuard guard;
  for (size_t i = 0; i < boxes.parts.size(); ++i) {
    const int64_t rank = spec.mesh().local_ranks()[i];
    const LocalLayout part = spec.layout_of_rank(rank), box = box_of_rank(around, spec, rank);
    for (const auto& [dim, cut_by, known] : around.dims) {
      if (std::find(dims.begin(), dims.end(), dim) != dims.end()) continue;
      const IndexRange& own = part.dims[dim][0];
      boxes.parts[i] = boxes.parts[i].narrow(dim, own.begin - box.dims[dim][0].begin, own.size);
    }
  }
  return boxes;
}

int64_t box_bytes(const GhostRegion& around, const Spec& spec) {
  Shape sizes = spec.layout_of_rank(spec.mesh().ranks()[0]).sizes();
  for (const auto& [dim, cut_by, known] : around.dims) {
    for (const IndexRange& run : known) sizes[dim] = std::max(sizes[dim], run.size);
  }
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(spec.dtype()));
}

void cache_ghost_region(const at::Tensor& t, GhostRegion region) {
  if (!may_cache_facts(t)) return;
  const int64_t bytes = box_bytes(region, *spec_of(t));  // the memory meter counts them with the boxes
  add_fact(t, std::make_shared<const GhostRegion>(std::move(region)), bytes);
}

std::shared_ptr<const GhostRegion> cached_ghost_region(const at::Tensor& t, bool periodic) {
  // Not meta_for_read(): the local tensors may be lazy, and must not be fetched for this.
  const auto found = find_fact<CachedGhostRegion>(t, meta_without_sync(t),
                                                  [&](const auto& region) { return region->periodic == periodic; });
  return found && !(*found)->boxes->are_forgotten() ? *found : nullptr;
}

void drop_ghost_region(const at::Tensor& t, bool periodic) {
  const DTensorMeta& meta = meta_without_sync(t);
  drop_entries(*meta.storage, [&](const CacheEntry& e) {
    const auto* region = std::get_if<CachedGhostRegion>(&e.value);
    return region != nullptr && (*region)->periodic == periodic && is_about(e, t, meta);
  });
}

}  // namespace dtensor::internal
