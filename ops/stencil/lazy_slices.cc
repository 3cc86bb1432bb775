#include "ops/stencil/lazy_slices.h"

#include <utility>

#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/copied_view.h"
#include "ops/halo/exchange.h"
#include "ops/stencil/slice_history.h"
#include "ops/stencil/slice_window.h"
#include "plan/redistribute_plan.h"

namespace dtensor {
namespace {

// The tensor that `t` is a slice of, or a view that shares its memory. Undefined: not known.
at::Tensor parent_view(const at::Tensor& t) {
  const at::Tensor viewed = base_of_view(t);
  if (viewed.defined()) return viewed;
  const ViewOrigin* origin = meta_without_sync(t).storage->origin.get();
  // A view that some ranks had to copy and others not is not a slice.
  return origin != nullptr && (origin->read != nullptr || !origin->moved) ? origin->base : at::Tensor();
}

struct Root {
  at::Tensor tensor;
  SliceWindowPtr window;
};

// The last of the chain's bases of which ranks have most of the slice, or its ghost region. If there is none: `self`,
// without a window.
Root root_of(const LazySlice& slice) {
  Root root{slice.self, nullptr};
  const int64_t begin = slice.self.storage_offset() + slice.offset;
  for (at::Tensor t = slice.self; t.defined(); t = parent_view(t)) {
    if (!(spec_of(t)->mesh() == slice.view->mesh()) || begin < t.storage_offset()) continue;
    auto window = slice_window(spec_of(t), slice.view, begin - t.storage_offset());
    if (!window || window->plan->peak_bytes > current_dispatch_scope().limits.max_bytes) continue;
    if (window->is_near || cached_ghost_region(t)) root = {t, std::move(window)};
  }
  return root;
}

// Takes `window` of `root` from the ghost region of root, which is fetched first if further windows are expected.
bool take_from_surroundings(const at::Tensor& root, const SliceWindowPtr& window, const CommCause& cause,
                            const RankTensors& parts) {
  if (!may_cache_facts(root)) return false;
  const bool lacks = !window->plan->is_local();
  if (const auto around = cached_ghost_region(root); around && take_from(*around, *window, parts)) {
    if (lacks) note_read(root, window, true);
    return true;
  }
  if (!lacks) return false;
  const auto boxes = window->is_near ? expected_boxes(root, window) : nullptr;
  if (!boxes) {
    note_read(root, window, false);
    return false;
  }
  const SpecPtr& spec = window->root;
  GhostRegion around{boxes->dims, {}, boxes->known, nullptr};
  for (const int64_t dim : around.dims) around.cut_by.push_back(cutting_mesh_dims(*spec, {dim}));
  RankTensors fetched = fetch_halos(*boxes->plan, meta_for_read(root).locals, 0, cause);
  auto storage = std::make_shared<LocalStorage>(spec->mesh().world(), box_bytes(around, *spec));
  around.boxes = std::make_shared<LazyParts>(LazyParts::Made{std::move(fetched), std::move(storage)});
  const bool taken = take_from(around, *window, parts);
  TORCH_INTERNAL_ASSERT(taken, "a window is not in the boxes that were fetched for it");
  cache_ghost_region(root, std::move(around));
  note_read(root, window, true);
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
    if (window && take_from_surroundings(base, window, cause, into)) return;
    fetch_slice(*plan, base, selected_dim, cause, into);
  };
  const std::vector<c10::IValue> args{root.tensor};
  return make_view_of({slice.op, args, 0, 0, std::move(computed), read}, slice.view, std::move(parts), offset,
                      /*moved=*/true);
}

}  // namespace dtensor
