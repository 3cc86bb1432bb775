#include "ops/halo/declared_region.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/exchange.h"
#include "plan/memo.h"

namespace dtensor::internal {
namespace {

using DeclaredRegionPtr = std::shared_ptr<const DeclaredRegion>;

// By the spec's number, the width and whether the region is periodic. Null: there is no region.
struct RegionMemo : Memo<std::tuple<uint64_t, std::vector<int64_t>, bool>, DeclaredRegionPtr, 256> {};

// From the first to the last index of a rank's part of the tensor, `own`, and of its parts of all slices that leave out
// up to `left_out` indices.
//
// Only the smallest slices need be looked at, as many sizes as the dim has parts: those of larger slices lie within
// theirs, since the length of a part changes at least once among as many sizes.
std::vector<IndexRange> reached_by_slices(const Spec& spec, int64_t dim, int64_t left_out,
                                          std::vector<IndexRange> own) {
  Shape sizes = spec.sizes();
  for (int64_t k = std::max<int64_t>(1, left_out - static_cast<int64_t>(own.size()) + 1); k <= left_out; ++k) {
    sizes[dim] = spec.sizes()[dim] - k;
    const at::IntArrayRef of_slice(sizes.data(), sizes.size());
    const auto parts = runs_along(*Spec::get(spec.mesh(), spec.placements(), of_slice, spec.dtype()), dim);
    // A size of which a rank has no part is skipped: such slices do not read the region.
    for (size_t i = 0; parts && i < parts->size(); ++i) {
      const int64_t begin = std::min(own[i].begin, (*parts)[i].begin);
      own[i] = {begin, std::max(own[i].end(), (*parts)[i].end() + k) - begin};
    }
  }
  return own;
}

// What operators that reach `width` elements beyond a part read: so many indices before and after each part. They go
// around the dim: -1 is its last index.
std::vector<IndexRange> reached_by_halos(int64_t width, std::vector<IndexRange> own) {
  for (IndexRange& run : own) run = {run.begin - width, run.size + 2 * width};
  return own;
}

DeclaredRegionPtr make_region(const SpecPtr& spec, const std::vector<int64_t>& width, bool periodic) {
  auto declared = std::make_shared<DeclaredRegion>();
  declared->width = width;
  declared->region.periodic = periodic;
  HaloRequest request{spec, spec, {}};
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    const auto cutting = cutting_mesh_dims(*spec, {d});
    if (width[d] == 0 || cutting.empty()) continue;
    const auto own = runs_along(*spec, d);
    if (!own) return nullptr;
    const auto reached = periodic ? reached_by_halos(width[d], *own) : reached_by_slices(*spec, d, 2 * width[d], *own);
    declared->region.dims.push_back({d, cutting, reached});
    // Place 0 of a periodic region is index -width.
    const int64_t n = spec->sizes()[d], shift = periodic ? width[d] : 0;
    const auto reach = [own = *own, reached, shift](const IndexRanges& part) {
      const IndexRange& wanted = reached[std::find(own.begin(), own.end(), part[0]) - own.begin()];
      return IndexRanges{{wanted.begin + shift, wanted.size}};
    };
    request.dims.push_back({d, periodic ? circular(n, width[d], width[d]) : sliced(0, n, 1), reach});
  }
  if (!request.dims.empty()) declared->plan = make_halo_plan(request);
  return declared->plan ? declared : nullptr;
}

}  // namespace

DeclaredRegionPtr declared_region(const at::Tensor& t, bool periodic) {
  const std::vector<int64_t> width = ghost_width(t);
  if (width.empty() || !may_cache_facts(t)) return nullptr;
  const SpecPtr& spec = spec_of(t);
  const World& world = spec->mesh().world();
  RegionMemo& memo = world.attachment<RegionMemo>();
  const std::tuple key{spec->id(), width, periodic};
  auto found = memo.find(key);
  if (!found) memo.insert(key, *(found = make_region(spec, width, periodic)), {spec});
  const DeclaredRegionPtr& declared = *found;
  const int64_t result_bytes = periodic ? spec->max_local_bytes() : 0;  // an operator has its result beside the box
  const bool fits = declared &&
                    declared->plan->peak_bytes + result_bytes <= current_dispatch_scope().hints.limits.max_bytes &&
                    fits_in_cache(world, box_bytes(declared->region, *spec));
  return fits ? declared : nullptr;
}

CachedGhostRegion periodic_region(const DeclaredRegion& declared, const at::Tensor& t, int64_t saved_bytes,
                                  const CommCause& cause) {
  meta_for_read(t);  // a copied view drops its region if its base was written to
  const auto cached = cached_ghost_region(t, /*periodic=*/true);
  if (cached && cached->dims == declared.region.dims) {
    report_reuse(cause, "ghost region", saved_bytes);
    return cached;
  }
  // One of another width may be left from a handle with other bits or strides, for which the width was declared.
  if (cached) drop_ghost_region(t, /*periodic=*/true);
  return fetch_region(declared, t, cause);
}

CachedGhostRegion fetch_region(const DeclaredRegion& declared, const at::Tensor& t, const CommCause& cause) {
  const Spec& spec = *spec_of(t);
  GhostRegion around = declared.region;
  RankTensors fetched = fetch_halos(*declared.plan, meta_for_read(t).locals, 0, cause);
  auto storage = std::make_shared<LocalStorage>(spec.mesh().world(), box_bytes(around, spec));
  around.boxes = std::make_shared<LazyParts>(LazyParts::Made{std::move(fetched), std::move(storage)});
  cache_ghost_region(t, around);
  return std::make_shared<const GhostRegion>(std::move(around));
}

}  // namespace dtensor::internal
