// Slices and selections of a sharded dim are lazy: nothing is communicated before one is read. One that is only sliced
// further, or overwritten as a whole, never communicates. They are copied views (copied_view.h), since parts have to
// move; but ranks fetch only what they lack, and the dim stays split. A slice with no more indices than ranks is
// replicated. There is no price to compare, as nothing moves yet, and so no decision. All or nothing of a dim is taken
// by the rule, which moves nothing either.
#include "ops/stencil/lazy_slices.h"

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/view_window.h"
#include "dtensor/views/copied_view.h"
#include "ops/halo/exchange.h"
#include "ops/stencil/slice_window.h"
#include "ops/support/cut_dims.h"
#include "ops/support/slice_range.h"
#include "ops/views/blocks.h"
#include "placement/placement.h"
#include "placement/with_dim.h"
#include "plan/memo.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

std::optional<Taken> taken_by_select(const Arguments& args, at::IntArrayRef sizes) {
  const auto dim = valid_dim(args["dim"], static_cast<int64_t>(sizes.size()));
  if (!dim || !args["index"].isInt()) return std::nullopt;
  const int64_t n = sizes[*dim], index = args["index"].toInt();
  if (n == 1 || index < -n || index >= n) return std::nullopt;
  return Taken{*dim, index < 0 ? index + n : index, 1, 1};
}

bool fits(const SliceWindow& window) {
  return window.plan->peak_bytes <= current_dispatch_scope().hints.limits.max_bytes;
}

// ------------------------------------------------------------ windows

// The run of indices of the root, from the first to the last that each rank needs for its part of the view.
std::optional<std::vector<IndexRange>> reached_along(const Spec& view, int64_t dim, int64_t start, int64_t step) {
  auto reached = runs_along(view, dim);
  for (size_t i = 0; reached && i < reached->size(); ++i) {
    IndexRange& run = (*reached)[i];
    run = {start + step * run.begin, step * (run.size - 1) + 1};
  }
  return reached;
}

// Whether each rank holds half of the indices that it needs.
bool is_mostly_own(const Spec& root, int64_t dim, const std::vector<IndexRange>& reached) {
  const auto own = runs_along(root, dim);
  return own && std::equal(own->begin(), own->end(), reached.begin(), [](const IndexRange& a, const IndexRange& b) {
           return 2 * (std::min(a.begin + a.size, b.begin + b.size) - std::max(a.begin, b.begin)) >= b.size;
         });
}

// The window that begins at `start` and takes each `step`-th index, per dim. `view`: its layout, with the same dims.
// `keeps_layout`: the view's placements are the root's. Null: no sliced dim is cut, or there is no plan.
SliceWindowPtr make_window(const SpecPtr& root, const SpecPtr& view, bool keeps_layout, Shape start, Shape step) {
  auto window = std::make_shared<SliceWindow>();
  if (keeps_layout && view->meta().numel() > 0) window->cuts.emplace();
  HaloRequest request{root, view, {}};
  for (int64_t d = 0; d < root->ndim(); ++d) {
    const int64_t n = root->sizes()[d], count = view->sizes()[d];
    const auto cutting = cutting_mesh_dims(*root, {d});
    if (window->cuts && cutting.empty()) {
      window->is_near = window->is_near && 2 * (step[d] * (count - 1) + 1) > n;
    } else if (window->cuts) {
      auto reached = reached_along(*view, d, start[d], step[d]);
      window->is_near = window->is_near && reached && is_mostly_own(*root, d, *reached);
      reached ? window->cuts->push_back({d, *std::move(reached)}) : window->cuts.reset();
    }
    const HaloDim dim{d, sliced(start[d], count, step[d]), {}};
    if (dim.map.is_identity(n)) continue;
    window->cutting.insert(window->cutting.end(), cutting.begin(), cutting.end());
    request.dims.push_back(dim);
  }
  window->start = std::move(start);
  window->step = std::move(step);
  if (!window->cutting.empty()) window->plan = make_halo_plan(request);
  return window->plan ? window : nullptr;
}

// ------------------------------------------------------------ slices of slices

// By the specs' numbers and the offset. Null: none.
struct WindowMemo : Memo<std::tuple<uint64_t, uint64_t, int64_t>, SliceWindowPtr, 2048> {};

// The window of `root` that has the layout `view` and begins `offset` elements after it in its memory. Cached per
// world. Null: it is not a product of slices of the dims, or has no cuts.
SliceWindowPtr window_of_slices(const SpecPtr& root, const SpecPtr& view, int64_t offset) {
  WindowMemo& memo = root->mesh().world().attachment<WindowMemo>();
  const std::tuple key{root->id(), view->id(), offset};
  if (const auto known = memo.find(key)) return *known;
  const bool is_alike = root->ndim() == view->ndim() && root->dtype() == view->dtype() && root->meta().numel() > 0 &&
                        view->placements() == as_addends(root->placements());
  auto map = is_alike ? map_dims(window_of(*view, offset), window_of(*root, 0)) : std::nullopt;
  for (int64_t d = 0; map && d < view->ndim(); ++d) {
    if (map->base_dim[d] != d && view->sizes()[d] != 1) {
      map.reset();
    } else {
      map->step[d] = std::max<int64_t>(1, map->step[d]);
    }
  }
  SliceWindowPtr window = map ? make_window(root, view, /*keeps_layout=*/true, map->start, map->step) : nullptr;
  if (window && !window->cuts) window = nullptr;
  memo.insert(key, window, {root, view});
  return window;
}

// The tensor that `t` is a slice of, or a view that shares its memory. Undefined: not known.
at::Tensor parent_view(const at::Tensor& t) {
  const LocalStorage& storage = *meta_without_sync(t).storage;
  if (!storage.cached->has_base.load(std::memory_order_relaxed) && !storage.observer) return {};
  const at::Tensor viewed = base_of_view(t);
  const ViewOrigin* origin = viewed.defined() ? nullptr : origin_of(storage);
  // A view that some ranks had to copy and others not is not a slice.
  return origin != nullptr && (origin->read != nullptr || !origin->moved) ? origin->base : viewed;
}

struct Root {
  at::Tensor tensor;
  SliceWindowPtr window;
};

// If root.tensor is itself a slice: the last of the chain's bases of which ranks have most of the view, or its ghost
// region; of bases with a declared one, the first. `begin`: where the view begins in memory.
Root root_of(Root root, const SpecPtr& view, int64_t begin) {
  at::Tensor t = root.window->cuts ? parent_view(root.tensor) : at::Tensor();
  bool is_declared = t.defined() && has_declared_region(root.tensor, *root.window);
  for (; t.defined() && !is_declared; t = parent_view(t)) {
    const bool is_inside = spec_of(t)->mesh() == view->mesh() && begin >= t.storage_offset();
    auto window = is_inside ? window_of_slices(spec_of(t), view, begin - t.storage_offset()) : nullptr;
    if (!window || !fits(*window)) continue;
    is_declared = has_declared_region(t, *window);
    if (is_declared || window->is_near || cached_ghost_region(t)) root = {t, std::move(window)};
  }
  return root;
}

// ------------------------------------------------------------ slices

// A slice or selection of a tensor. The same on every rank.
struct Slice {
  SpecPtr view;
  SliceWindowPtr
      window;  // of the tensor. Null: the operator follows its rule, which moves nothing, or has to move parts
};

Slice make_slice(const SpecPtr& source, const Taken& taken, bool selects) {
  if (!selects && is_at_borders(*source, taken.dim, taken.start, taken.count, taken.step)) return {};
  const std::vector<int64_t> cutting = cutting_mesh_dims(*source, {taken.dim});
  int64_t ranks = 1;
  for (const int64_t m : cutting) ranks *= source->mesh().size(m);
  const bool stays_split = !selects && taken.count > ranks;
  Placements placements = as_addends(source->placements());
  for (const int64_t m : cutting) {
    if (!stays_split) placements[m] = Replicate();
  }
  TensorMeta meta = source->meta();
  meta.sizes[taken.dim] = taken.count;
  meta.strides[taken.dim] *= taken.step;
  const SpecPtr part = Spec::get(source->mesh(), placements, meta);
  Shape start(source->ndim(), 0), step(source->ndim(), 1);
  start[taken.dim] = taken.start;
  step[taken.dim] = taken.step;
  Slice slice{part, make_window(source, part, stays_split, std::move(start), std::move(step))};
  if (!selects) return slice;
  meta.sizes.erase(meta.sizes.begin() + taken.dim);
  meta.strides.erase(meta.strides.begin() + taken.dim);
  for (Placement& p : placements) {
    if (!p.is_sharded() || p.dim() < taken.dim) continue;
    p = p.dim() == taken.dim ? Replicate() : with_dim(p, p.dim() - 1);  // a mesh dim of one rank has the index
  }
  slice.view = Spec::get(source->mesh(), placements, meta);
  return slice;
}

// By the spec's number, the indices and whether one is selected.
struct SliceMemo : Memo<std::array<int64_t, 6>, Slice, 1024> {};

// Also while the strategy cache is frozen: the spec and the indices alone say what is taken, whether or not it was
// taken before.
Slice slice_of(const SpecPtr& source, const Taken& taken, bool selects) {
  SliceMemo& memo = source->mesh().world().attachment<SliceMemo>();
  const std::array<int64_t, 6> key{
      static_cast<int64_t>(source->id()), taken.dim, taken.start, taken.count, taken.step, selects};
  if (auto known = memo.find(key)) return *std::move(known);
  Slice slice = make_slice(source, taken, selects);
  memo.insert(key, slice, {source});
  return slice;
}

// slice.Tensor(self, dim, start, end, step), select.int(self, dim, index).
template <bool kSelect>
void take_part(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto taken = kSelect ? taken_by_select(args, self.sizes()) : taken_by_slice(args, self.sizes());
  const SpecPtr& source = spec_of(self);
  const Slice slice = taken && is_cut(*source, taken->dim) ? slice_of(source, *taken, kSelect) : Slice();
  if (!slice.window || !fits(*slice.window)) return dispatch_by_rule(op, stack);

  const int64_t begin = self.storage_offset() + taken->start * self.stride(taken->dim);
  const auto [root, window] = root_of({self, slice.window}, slice.view, begin);
  Placements computed = spec_of(root)->placements();
  for (const int64_t m : window->cutting) computed[m] = Replicate();
  const RankTensors whole = empty_halos(*window->plan, meta_without_sync(root).locals);
  RankTensors parts = whole;  // in the same memory
  if (kSelect) {
    LocalGuard guard;
    for (at::Tensor& part : parts) part = part.squeeze(taken->dim);
  }
  const auto read = [window = window, whole, cause = call_cause(op, "self", self)](const at::Tensor& base) {
    read_window(base, *window, cause, whole);
  };
  const std::vector<c10::IValue> of_root{root};
  return_tensors(op, stack,
                 {make_view_of({op, of_root, 0, 0, std::move(computed), read}, slice.view, std::move(parts),
                               begin - root.storage_offset(), /*moved=*/true)});
}

}  // namespace

std::optional<Taken> taken_by_slice(const Arguments& args, at::IntArrayRef sizes) {
  const auto dim = valid_dim(args["dim"], static_cast<int64_t>(sizes.size()));
  const int64_t step = args["step"].toInt();
  if (!dim || step < 1) return std::nullopt;
  const SliceRange range = slice_range(args["start"], args["end"], step, sizes[*dim]);
  if (range.moves_nothing(sizes[*dim])) return std::nullopt;
  return Taken{*dim, range.start, range.count, range.step};
}

const RuleFamily lazy_slices_handlers("lazy_slices", [](RuleRegistry& registry) {
  registry.add_handler("aten::slice.Tensor", take_part<false>);
  registry.add_handler("aten::select.int", take_part<true>);
});

}  // namespace dtensor::internal
