#include "ops/stencil/lazy_slices.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/views/copied_view.h"
#include "ops/halo/exchange.h"
#include "placement/placement.h"
#include "plan/memo.h"

namespace dtensor::internal {
namespace {

using DimRuns = std::vector<Run>;  // indices of a dim, by a rank's position along the mesh dims that cut it

int64_t end_of(const Run& run) { return run.begin + run.size; }

// ------------------------------------------------------------ windows

// A slice, or a slice of slices, as a window of its base, the root: which elements of the root every rank needs, and
// the plan to fetch them. The same on every rank.
//
// Of u of [64, 64], S(0)S(1) on 4 x 4 ranks, the window u[2:, 1:-1] begins two rows and a column after the part of each
// rank, so that ranks lack two rows of the next one, and a column.
struct SliceWindow {
  struct Cut {
    int64_t dim;      // a sharded dim of the root
    DimRuns reached;  // indices of the root
  };
  DimMap map;
  std::vector<Cut> cuts;                 // ascending
  std::vector<int64_t> cutting;          // mesh dims that cut the sliced dims
  std::shared_ptr<const HaloPlan> plan;  // from the root
  // Every rank already holds half of its part of the window, and the window covers more than half of the root along the
  // dims that are not sharded. Otherwise, as for one of many time steps, it may be better to fetch an intermediate
  // slice and slice that.
  bool is_near = true;
};
using SliceWindowPtr = std::shared_ptr<const SliceWindow>;

// By the specs' numbers and the offset. Null: none.
struct WindowMemo : Memo<std::tuple<uint64_t, uint64_t, int64_t>, SliceWindowPtr, 2048> {};

int64_t step_along(const DimMap& map, int64_t dim) { return std::max<int64_t>(1, map.step[dim]); }

// How the dims of the view step along the same dims of the root; nullopt: along others, or they have other layouts.
std::optional<DimMap> map_dim_by_dim(const Spec& root, const Spec& view, int64_t offset) {
  const bool is_alike = root.ndim() == view.ndim() && root.dtype() == view.dtype() && root.meta().numel() > 0 &&
                        view.meta().numel() > 0 && view.placements() == as_addends(root.placements());
  auto map = is_alike ? map_dims(window_of(view, offset), window_of(root, 0)) : std::nullopt;
  for (int64_t d = 0; map && d < view.ndim(); ++d) {
    if (map->base_dim[d] != d && view.sizes()[d] != 1) map.reset();
  }
  return map;
}

// The run of indices of the root along `dim`, from the first to the last that each rank needs for its part of the view.
std::optional<DimRuns> reached_along(const Spec& view, const DimMap& map, int64_t dim) {
  auto reached = runs_along(view, dim);
  const int64_t step = step_along(map, dim);
  for (size_t i = 0; reached && i < reached->size(); ++i) {
    Run& run = (*reached)[i];
    run = {map.start[dim] + step * run.begin, step * (run.size - 1) + 1};
  }
  return reached;
}

// Whether each rank holds half of the indices that it needs.
bool is_mostly_own(const Spec& root, int64_t dim, const DimRuns& reached) {
  const auto own = runs_along(root, dim);
  return own && std::equal(own->begin(), own->end(), reached.begin(), [](const Run& a, const Run& b) {
           return 2 * (std::min(end_of(a), end_of(b)) - std::max(a.begin, b.begin)) >= b.size;
         });
}

SliceWindowPtr make_window(const SpecPtr& root, const SpecPtr& view, int64_t offset) {
  const auto map = map_dim_by_dim(*root, *view, offset);
  auto window = std::make_shared<SliceWindow>();
  HaloRequest request{root, view, {}};
  bool fits = map.has_value();
  for (int64_t d = 0; fits && d < root->ndim(); ++d) {
    const int64_t n = root->sizes()[d], count = view->sizes()[d], step = step_along(*map, d);
    const HaloDim dim{d, sliced(map->start[d], count, step), {}};
    const auto cutting = cutting_mesh_dims(*root, {d});
    auto reached = cutting.empty() ? std::nullopt : reached_along(*view, *map, d);
    fits = cutting.empty() || reached;
    window->is_near =
        window->is_near && (reached ? is_mostly_own(*root, d, *reached) : 2 * (step * (count - 1) + 1) > n);
    if (reached) window->cuts.push_back({d, *std::move(reached)});
    if (dim.map.is_identity(n)) continue;
    window->cutting.insert(window->cutting.end(), cutting.begin(), cutting.end());
    request.dims.push_back(dim);
  }
  if (fits && !window->cutting.empty()) {
    window->map = *map;
    window->plan = make_halo_plan(request);
  }
  return window->plan ? window : nullptr;
}

// The window of `root` that has the layout `view` and begins `offset` elements after it in its memory. Cached per
// world. Null: it is not a product of slices of the dims, has another layout, or some rank holds none of it, or several
// runs.
SliceWindowPtr slice_window(const SpecPtr& root, const SpecPtr& view, int64_t offset) {
  WindowMemo& memo = root->mesh().world().attachment<WindowMemo>();
  const std::tuple key{root->id(), view->id(), offset};
  auto found = memo.find(key);
  if (!found) memo.insert(key, *(found = make_window(root, view, offset)), {root, view});
  return *found;
}

// Whether every rank's window is inside its box.
bool lies_in(const GhostRegion& around, const SliceWindow& window, const Spec& root) {
  return std::all_of(window.cuts.begin(), window.cuts.end(), [&](const SliceWindow::Cut& cut) {
    const GhostRegion::Dim* wider = around.along(cut.dim);
    const auto box = wider ? std::optional(wider->known) : runs_along(root, cut.dim);
    const auto contains = [](const Run& outer, const Run& inner) {
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
    const Part known = box_of_rank(around, root, ranks[i]);
    const at::Tensor& box = boxes[i];
    Shape strides(root.ndim(), 0), first = window.map.start;
    for (const auto& [dim, reached] : window.cuts) first[dim] = reached[place_of(root, dim, ranks[i])].begin;
    int64_t offset = box.storage_offset();
    for (int64_t d = 0; d < root.ndim(); ++d) {
      strides[d] = step_along(window.map, d) * box.stride(d);
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
DimRuns reached_by_slices(const Spec& spec, int64_t dim, int64_t left_out, DimRuns own) {
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
    const DimRuns reached = reached_by_slices(*spec, d, 2 * width[d], *own);
    declared->region.dims.push_back({d, cutting, reached});
    const auto reach = [own = *own, reached](const Runs& part) {
      return Runs{reached[std::find(own.begin(), own.end(), part[0]) - own.begin()]};
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

// The tensor that `t` is a slice of, or a view that shares its memory. Undefined: not known.
at::Tensor parent_view(const at::Tensor& t) {
  const at::Tensor viewed = base_of_view(t);
  const ViewOrigin* origin = viewed.defined() ? nullptr : origin_of(*meta_without_sync(t).storage);
  // A view that some ranks had to copy and others not is not a slice.
  return origin != nullptr && (origin->read != nullptr || !origin->moved) ? origin->base : viewed;
}

struct Root {
  at::Tensor tensor;
  SliceWindowPtr window;
};

// The last of the chain's bases of which ranks have most of the slice, or its ghost region; of bases with a declared
// one, the first. If there is none: `self`, without a window.
Root root_of(const LazySlice& slice) {
  Root root{slice.self, nullptr};
  const int64_t begin = slice.self.storage_offset() + slice.offset;
  bool is_declared = false;
  for (at::Tensor t = slice.self; t.defined() && !is_declared; t = parent_view(t)) {
    const bool is_inside = spec_of(t)->mesh() == slice.view->mesh() && begin >= t.storage_offset();
    auto window = is_inside ? slice_window(spec_of(t), slice.view, begin - t.storage_offset()) : nullptr;
    const bool may_run = window && window->plan->peak_bytes <= current_dispatch_scope().hints.limits.max_bytes;
    is_declared = may_run && declared_region(t, *window) != nullptr;
    if (is_declared || (may_run && (window->is_near || cached_ghost_region(t)))) root = {t, std::move(window)};
  }
  return root;
}

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

at::Tensor make_lazy_slice(LazySlice slice) {
  const auto [root, window] = root_of(slice);
  Placements computed = spec_of(root)->placements();
  for (const int64_t m : window ? window->cutting : slice.cutting) computed[m] = Replicate();
  const auto plan = window ? window->plan : slice.plan;
  const int64_t offset = slice.self.storage_offset() + slice.offset - root.storage_offset();
  const RankTensors whole = empty_halos(*plan, meta_without_sync(root).locals);
  RankTensors parts = whole;  // in the same memory
  if (slice.selected_dim >= 0) {
    LocalGuard guard;
    for (at::Tensor& part : parts) part = part.squeeze(slice.selected_dim);
  }
  const auto read = [window = window, plan, whole, cause = std::move(slice.cause)](const at::Tensor& base) {
    const auto region = window ? region_to_read(base, *window, cause) : nullptr;
    if (const LazyParts::Made* boxes = region ? region->boxes->get() : nullptr) {
      copy_window(*region, boxes->parts, *window, *spec_of(base), whole);
    } else {
      fetch_halos(*plan, meta_for_read(base).locals, 0, cause, whole);
    }
  };
  const std::vector<c10::IValue> args{root};
  return make_view_of({slice.op, args, 0, 0, std::move(computed), read}, slice.view, std::move(parts), offset,
                      /*moved=*/true);
}

}  // namespace dtensor::internal
