#include "dtensor/layout_cache/ghost_region.h"

#include <c10/util/accumulate.h>

#include <algorithm>

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

Part box_of_rank(const GhostRegion& around, const Spec& spec, int64_t rank) {
  Part box = spec.layout_of_rank(rank);
  const auto coordinate = spec.mesh().coordinate(rank);
  for (size_t k = 0; k < around.dims.size(); ++k) {
    int64_t place = 0;
    for (const int64_t m : around.cut_by[k]) place = place * spec.mesh().size(m) + coordinate[m];
    const Run& run = around.known[k][place];
    box.dims[around.dims[k]] = {run};
    box.offsets[around.dims[k]] = run.begin;
  }
  return box;
}

int64_t box_bytes(const GhostRegion& around, const Spec& spec) {
  Shape sizes = spec.layout_of_rank(spec.mesh().ranks()[0]).sizes();
  for (size_t k = 0; k < around.dims.size(); ++k) {
    int64_t& size = sizes[around.dims[k]];
    for (const Run& run : around.known[k]) size = std::max(size, run.size);
  }
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(spec.dtype()));
}

}  // namespace dtensor::internal
