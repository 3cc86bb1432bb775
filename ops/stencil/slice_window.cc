#include "ops/stencil/slice_window.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "ops/halo/declared_region.h"
#include "ops/halo/exchange.h"

namespace dtensor::internal {
namespace {

// Whether every rank's window is inside its box.
bool lies_in(const GhostRegion& around, const SliceWindow& window, const Spec& root) {
  return window.cuts && std::all_of(window.cuts->begin(), window.cuts->end(), [&](const SliceWindow::Cut& cut) {
           const GhostRegion::Dim* wider = around.along(cut.dim);
           const auto box = wider ? std::optional(wider->known) : runs_along(root, cut.dim);
           const auto contains = [](const IndexRange& outer, const IndexRange& inner) {
             return outer.begin <= inner.begin && inner.end() <= outer.end();
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

// The region to fetch before reading `window` of `t`. Null: no region was declared, or the window is not in it.
std::shared_ptr<const DeclaredRegion> region_of_window(const at::Tensor& t, const SliceWindow& window) {
  const auto declared = declared_region(t, /*periodic=*/false);
  return declared && lies_in(declared->region, window, *spec_of(t)) ? declared : nullptr;
}

// ------------------------------------------------------------ reading

// Decides where `window` of `root` is read from: its ghost region, which is fetched now if it was declared and ranks
// lack elements; or null, an exchange for this window alone.
CachedGhostRegion region_to_read(const at::Tensor& root, const SliceWindow& window, const CommCause& cause) {
  const bool lacks = !window.plan->is_local();
  auto region = cached_ghost_region(root);
  const bool was_fetched = region && region->boxes->if_made() != nullptr;
  // A region of another width may be left from a handle with other bits, for which the width was declared.
  const bool is_in_it = region && lies_in(*region, window, *spec_of(root));
  const auto declared = lacks && !is_in_it ? region_of_window(root, window) : nullptr;
  if (declared) {
    drop_ghost_region(root, /*periodic=*/false);
    region = fetch_region(*declared, root, cause);
  }
  const bool fits = declared || is_in_it;
  if (is_in_it && lacks && was_fetched) report_reuse(cause, "ghost region", window.plan->bytes);
  return fits ? region : nullptr;
}

}  // namespace

bool has_declared_region(const at::Tensor& t, const SliceWindow& window) {
  return region_of_window(t, window) != nullptr;
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
