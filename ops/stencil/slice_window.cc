#include "ops/stencil/slice_window.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "ops/halo/exchange.h"
#include "plan/memo.h"

namespace dtensor::internal {
namespace {

int64_t end_of(const IndexRange& run) { return run.begin + run.size; }

// Whether every rank's window is inside its box.
bool lies_in(const GhostRegion& around, const SliceWindow& window, const Spec& root) {
  return window.cuts && std::all_of(window.cuts->begin(), window.cuts->end(), [&](const SliceWindow::Cut& cut) {
           const GhostRegion::Dim* wider = around.along(cut.dim);
           const auto box = wider ? std::optional(wider->known) : runs_along(root, cut.dim);
           const auto contains = [](const IndexRange& outer, const IndexRange& inner) {
             return outer.begin <= inner.begin && end_of(inner) <= end_of(outer);
           };
           return box && std::equal(box->begin(), box->end(), cut.reached.begin(), cut.reached.end(), contains);
         });
}

// Copies the window from the boxes to `parts`, without communication. REQUIRES: lies_in().
void copy_window(const GhostRegion& around, const RankTensors& boxes, const SliceWindow& window, const Spec& root,
                 const RankTensors& parts) {
  LocalGuard guard;
  const auto ranks = root.mesh().local_ranks();
  for (size_t i = 0; i < parts.size(); ++i) {
    const LocalLayout known = box_of_rank(around, root, ranks[i]);
    const at::Tensor& box = boxes[i];
    Shape strides(root.ndim(), 0), first = window.start;
    for (const auto& [dim, reached] : *window.cuts) first[dim] = reached[place_of(root, dim, ranks[i])].begin;
    int64_t offset = box.storage_offset();
    for (int64_t d = 0; d < root.ndim(); ++d) {
      strides[d] = window.step[d] * box.stride(d);
      offset += (first[d] - known.dims[d][0].begin) * box.stride(d);
    }
    parts[i].copy_(box.as_strided(parts[i].sizes(), at::IntArrayRef(strides.data(), strides.size()), offset));
  }
}

// ------------------------------------------------------------ declared ghost regions

// The ghost region of a tensor with a ghost width, and how to fetch its boxes.
struct DeclaredRegion {
  GhostRegion region;  // without boxes
  std::shared_ptr<const HaloPlan> plan;
};
using DeclaredRegionPtr = std::shared_ptr<const DeclaredRegion>;

// By the spec's number and the width. Null: there is no region.
struct RegionMemo : Memo<std::pair<uint64_t, std::vector<int64_t>>, DeclaredRegionPtr, 256> {};

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
    for (size_t i = 0; parts && i < parts->size();
         ++i) {  // slices of a size of which a rank has no part are no windows
      const int64_t begin = std::min(own[i].begin, (*parts)[i].begin);
      own[i] = {begin, std::max(end_of(own[i]), end_of((*parts)[i]) + k) - begin};
    }
  }
  return own;
}

DeclaredRegionPtr make_region(const SpecPtr& spec, const std::vector<int64_t>& width) {
  auto declared = std::make_shared<DeclaredRegion>();
  HaloRequest request{spec, spec, {}};
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    const auto cutting = cutting_mesh_dims(*spec, {d});
    if (width[d] == 0 || cutting.empty()) continue;
    const auto own = runs_along(*spec, d);
    if (!own) return nullptr;
    const std::vector<IndexRange> reached = reached_by_slices(*spec, d, 2 * width[d], *own);
    declared->region.dims.push_back({d, cutting, reached});
    const auto reach = [own = *own, reached](const IndexRanges& part) {
      return IndexRanges{reached[std::find(own.begin(), own.end(), part[0]) - own.begin()]};
    };
    const int64_t n = spec->sizes()[d];
    request.dims.push_back({d, sliced(0, n, 1), reach});
  }
  if (!request.dims.empty()) declared->plan = make_halo_plan(request);
  return declared->plan ? declared : nullptr;
}

// The region to fetch before reading `window` of `t`, if it lies there. Null: no width was declared, the layout has no
// region, nothing about `t` may be cached, or the region is above a limit.
DeclaredRegionPtr declared_region(const at::Tensor& t, const SliceWindow& window) {
  const SpecPtr& spec = spec_of(t);
  const World& world = spec->mesh().world();
  const std::vector<int64_t> width = ghost_width(t);
  std::optional found{DeclaredRegionPtr()};
  if (!width.empty() && may_cache_facts(t)) {
    RegionMemo& memo = world.attachment<RegionMemo>();
    const std::pair key{spec->id(), width};
    found = memo.find(key);
    if (!found) memo.insert(key, *(found = make_region(spec, width)), {spec});
  }
  const DeclaredRegionPtr& declared = *found;
  const bool fits = declared && declared->plan->peak_bytes <= current_dispatch_scope().hints.limits.max_bytes &&
                    fits_in_cache(world, box_bytes(declared->region, *spec));
  return fits && lies_in(declared->region, window, *spec) ? declared : nullptr;
}

// ------------------------------------------------------------ reading

// Fetches and caches the declared ghost region of `root`.
CachedGhostRegion fetch_region(const DeclaredRegion& declared, const at::Tensor& root, const CommCause& cause) {
  const Spec& spec = *spec_of(root);
  GhostRegion around = declared.region;
  RankTensors fetched = fetch_halos(*declared.plan, meta_for_read(root).locals, 0, cause);
  auto storage = std::make_shared<LocalStorage>(spec.mesh().world(), box_bytes(around, spec));
  around.boxes = std::make_shared<LazyParts>(LazyParts::Made{std::move(fetched), std::move(storage)});
  cache_ghost_region(root, around);
  return std::make_shared<const GhostRegion>(std::move(around));
}

// Decides where `window` of `root` is read from: its ghost region, which is fetched now if it was declared and ranks
// lack elements; or null, an exchange for this window alone.
CachedGhostRegion region_to_read(const at::Tensor& root, const SliceWindow& window, const CommCause& cause) {
  const bool lacks = !window.plan->is_local();
  auto region = cached_ghost_region(root);
  const bool was_fetched = region && region->boxes->if_made() != nullptr;
  const auto declared = !region && lacks ? declared_region(root, window) : nullptr;
  if (declared) region = fetch_region(*declared, root, cause);
  const bool fits = declared || (region && lies_in(*region, window, *spec_of(root)));
  if (fits && lacks && was_fetched) report_reuse(cause, "ghost region", window.plan->bytes);
  return fits ? region : nullptr;
}

}  // namespace

bool has_declared_region(const at::Tensor& t, const SliceWindow& window) {
  return declared_region(t, window) != nullptr;
}

void read_window(const at::Tensor& root, const SliceWindow& window, const CommCause& cause, const RankTensors& parts) {
  const auto region = region_to_read(root, window, cause);
  if (const LazyParts::Made* boxes = region ? region->boxes->get() : nullptr) {
    copy_window(*region, boxes->parts, window, *spec_of(root), parts);
  } else {
    fetch_halos(*window.plan, meta_for_read(root).locals, 0, cause, parts);
  }
}

}  // namespace dtensor::internal
