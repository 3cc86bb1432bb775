#include "ops/stencil/lazy_slices.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/copied_view.h"
#include "ops/halo/cut_runs.h"
#include "ops/halo/exchange.h"
#include "ops/stencil/slice_window.h"
#include "plan/memo.h"
#include "plan/redistribute_plan.h"

namespace dtensor::internal {
namespace {

// The ghost region of a tensor with a ghost width, and how to fetch its boxes.
struct DeclaredRegion {
  GhostRegion region;  // without boxes
  std::shared_ptr<const HaloPlan> plan;
};
using DeclaredRegionPtr = std::shared_ptr<const DeclaredRegion>;

// By the spec's number and the width. Null: there is no region.
struct RegionMemo : Memo<std::pair<uint64_t, std::vector<int64_t>>, DeclaredRegionPtr, 256> {};

// Per rank along `dim`: from the first to the last index of its part of the tensor and of its parts of all slices that
// leave out up to `left_out` indices. Nullopt: some ranks have no part of the tensor, or several.
//
// Only the smallest slices need be looked at, as many sizes as the dim has parts: those of larger slices lie within
// theirs, since the length of a part changes at least once among as many sizes.
std::optional<std::vector<Run>> reached_by_slices(const Spec& spec, int64_t dim, int64_t left_out) {
  auto reached = runs_along(spec, dim);
  Shape sizes = spec.sizes();
  const int64_t num_parts = reached ? static_cast<int64_t>(reached->size()) : 0;
  for (int64_t k = std::max<int64_t>(1, left_out - num_parts + 1); reached && k <= left_out; ++k) {
    sizes[dim] = spec.sizes()[dim] - k;
    const at::IntArrayRef of_slice(sizes.data(), sizes.size());
    const auto parts = runs_along(*Spec::get(spec.mesh(), spec.placements(), of_slice, spec.dtype()), dim);
    for (size_t i = 0; parts && i < parts->size(); ++i)  // slices of a size of which a rank has no part are no windows
      (*reached)[i] = hull_of((*reached)[i], {(*parts)[i].begin, (*parts)[i].size + k});
  }
  return reached;
}

DeclaredRegionPtr make_region(const SpecPtr& spec, const std::vector<int64_t>& width) {
  auto declared = std::make_shared<DeclaredRegion>();
  HaloRequest request{spec, spec, {}};
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    const auto cutting = cutting_mesh_dims(*spec, {d});
    if (width[d] == 0 || cutting.empty()) continue;
    const auto own = runs_along(*spec, d), reached = reached_by_slices(*spec, d, 2 * width[d]);
    if (!own) return nullptr;
    declared->region.dims.push_back(d);
    declared->region.cut_by.push_back(cutting);
    declared->region.known.push_back(*reached);
    const auto reach = [own = *own, reached = *reached](const Runs& part) {
      return Runs{reached[std::find(own.begin(), own.end(), part[0]) - own.begin()]};
    };
    const int64_t n = spec->sizes()[d];
    request.dims.push_back({d, sliced(n, 0, n, 1), reach});
  }
  if (!request.dims.empty()) declared->plan = make_halo_plan(request);
  return declared->plan ? declared : nullptr;
}

// The region to fetch before reading `window` of `t`, if it lies there. Null: no width was declared, the layout has no
// region, nothing about `t` may be cached, or the region is above a limit.
DeclaredRegionPtr declared_region(const at::Tensor& t, const SliceWindow& window) {
  const std::vector<int64_t> width = ghost_width(t);
  if (width.empty() || !may_cache_facts(t)) return nullptr;
  const SpecPtr& spec = window.root;
  const World& world = spec->mesh().world();
  RegionMemo& memo = world.attachment<RegionMemo>();
  const std::pair key{spec->id(), width};
  auto found = memo.find(key);
  if (!found) memo.insert(key, *(found = make_region(spec, width)), {spec});
  const DeclaredRegionPtr& declared = *found;
  const bool fits = declared && declared->plan->peak_bytes <= current_dispatch_scope().limits.max_bytes &&
                    fits_in_cache(world, box_bytes(declared->region, *spec));
  return fits && lies_in(declared->region, window) ? declared : nullptr;
}

// The tensor that `t` is a slice of, or a view that shares its memory. Undefined: not known.
at::Tensor parent_view(const at::Tensor& t) {
  const at::Tensor viewed = base_of_view(t);
  if (viewed.defined()) return viewed;
  const ViewOrigin* origin = origin_of(*meta_without_sync(t).storage);
  // A view that some ranks had to copy and others not is not a slice.
  return origin != nullptr && (origin->read != nullptr || !origin->moved) ? origin->base : at::Tensor();
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
  for (at::Tensor t = slice.self; t.defined(); t = parent_view(t)) {
    if (!(spec_of(t)->mesh() == slice.view->mesh()) || begin < t.storage_offset()) continue;
    auto window = slice_window(spec_of(t), slice.view, begin - t.storage_offset());
    if (!window || window->plan->peak_bytes > current_dispatch_scope().limits.max_bytes) continue;
    const bool is_declared = declared_region(t, *window) != nullptr;
    if (is_declared || window->is_near || cached_ghost_region(t)) root = {t, std::move(window)};
    if (is_declared) break;
  }
  return root;
}

// Fetches and caches the ghost region that was declared for `root`, if `window` lies in it; else null.
std::shared_ptr<const GhostRegion> fetch_declared_region(const at::Tensor& root, const SliceWindow& window,
                                                         const CommCause& cause) {
  const auto declared = declared_region(root, window);
  if (!declared) return nullptr;
  GhostRegion around = declared->region;
  RankTensors fetched = fetch_halos(*declared->plan, meta_for_read(root).locals, 0, cause);
  auto storage = std::make_shared<LocalStorage>(window.root->mesh().world(), box_bytes(around, *window.root));
  around.boxes = std::make_shared<LazyParts>(LazyParts::Made{std::move(fetched), std::move(storage)});
  cache_ghost_region(root, around);
  return std::make_shared<const GhostRegion>(std::move(around));
}

// Takes `window` of `root` from the ghost region of root, which is fetched first if it was declared.
bool take_from_ghost_region(const at::Tensor& root, const SliceWindow& window, const CommCause& cause,
                            const RankTensors& parts) {
  if (!may_cache_facts(root)) return false;
  const bool lacks = !window.plan->is_local();
  auto region = cached_ghost_region(root);
  const bool was_fetched = region && region->boxes->if_made() != nullptr;
  if (!region && lacks) region = fetch_declared_region(root, window, cause);
  if (!region || !take_from(*region, window, parts)) return false;
  if (lacks && was_fetched) report_reuse(cause, "ghost region", window.plan->bytes);
  return true;
}

void fetch_slice(const HaloPlan& plan, const at::Tensor& self, int64_t selected_dim, const CommCause& cause,
                 const RankTensors& parts) {
  RankTensors whole = parts;
  if (selected_dim >= 0) {
    LocalGuard guard;
    for (at::Tensor& part : whole) part = part.unsqueeze(selected_dim);
  }
  fetch_halos(plan, meta_for_read(self).locals, 0, cause, whole);
}

RankTensors empty_parts(const HaloPlan& plan, const at::Tensor& self, int64_t selected_dim) {
  RankTensors parts = empty_halos(plan, meta_without_sync(self).locals);
  if (selected_dim < 0) return parts;
  LocalGuard guard;
  for (at::Tensor& part : parts) part = part.squeeze(selected_dim);
  return parts;
}

}  // namespace

at::Tensor make_lazy_slice(LazySlice slice) {
  Root root = root_of(slice);
  Placements computed = spec_of(root.tensor)->placements();
  const auto& cutting = root.window ? root.window->cutting : slice.cutting;
  for (const int64_t m : cutting) computed[m] = Replicate();
  const auto plan = root.window ? root.window->plan : slice.plan;
  const int64_t offset = slice.self.storage_offset() + slice.offset - root.tensor.storage_offset();
  RankTensors parts = empty_parts(*plan, root.tensor, slice.selected_dim);
  const auto read = [window = root.window, plan, selected_dim = slice.selected_dim, cause = std::move(slice.cause)](
                        const at::Tensor& base, const RankTensors& into) {
    if (window && take_from_ghost_region(base, *window, cause, into)) return;
    fetch_slice(*plan, base, selected_dim, cause, into);
  };
  const std::vector<c10::IValue> args{root.tensor};
  return make_view_of({slice.op, args, 0, 0, std::move(computed), read}, slice.view, std::move(parts), offset,
                      /*moved=*/true);
}

}  // namespace dtensor::internal
